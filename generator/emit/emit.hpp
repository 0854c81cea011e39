// Spec + plan -> one self-contained source file.
#pragma once

#include <string>

#include "generator/plan/plan.hpp"

namespace attune {

struct GeneratedKernel {
  std::string source;     // header comment, head, templates; no #include
  std::string symbol;     // of the entry point (extern "C")
  std::string body_hash;  // XXH3-128 of the source less its header comment; part of the build key
};

// Fails with kUnsupported when the plan's family cannot do the spec. Pure and thread-safe.
Result<GeneratedKernel> emit(const AttentionSpec& spec, const KernelPlan& plan);

}  // namespace attune
