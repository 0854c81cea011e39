// The same plan for pages of any size.
#pragma once

#include <optional>

#include "generator/plan/plan.hpp"

namespace attune {

// A plan whose K and V the tensor unit brings by boxes of a page's rows, with these copied row by
// row: nothing if it has no such boxes, or does not fit so.
std::optional<KernelPlan> plan_for_any_pages(const AttentionSpec& spec, const KernelPlan& plan,
                                             const DeviceFacts& device);

}  // namespace attune
