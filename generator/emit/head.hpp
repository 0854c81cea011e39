// The head: what the generator writes in place of templates/kernels/head.cuh.
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune {

// The facts of spec and plan as constants and the spec's expressions as functions, with the same
// names as the example in templates/kernels/head.cuh. `symbol` names the kernel. Thread-safe.
Result<std::string> head_text(const AttentionSpec& spec, const KernelPlan& plan,
                              const std::string& symbol);

}  // namespace attune
