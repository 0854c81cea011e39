// The same plan for pages of any size.
#pragma once

#include <optional>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

// A plan whose K and V the tensor unit brings by boxes of a page's rows, with these copied row by
// row: nothing if it has no such boxes, or does not fit so.
std::optional<KernelPlan> plan_for_any_pages(const AttentionSpec& spec, const KernelPlan& plan,
                                             const DeviceFacts& device);

// Whether boxes of the plan's tiles of K and V have so few rows in such pages that it takes the
// tensor unit less time to bring K's alone.
bool has_small_boxes(const KernelPlan& plan, int page_size);

// A plan with boxes, with V copied row by row and K by boxes, for launches on pages in which it has
// small boxes: nothing if boxes of both are no slower, or it does not fit so.
std::optional<KernelPlan> plan_for_small_boxes(const AttentionSpec& spec, const KernelPlan& plan,
                                               const DeviceFacts& device);

// The other way round: one that copies rows, with boxes, if it fits so; any other stays. What was
// tuned on small pages answers for large ones, too, and launches on small ones find the rows again.
KernelPlan plan_for_boxes(const AttentionSpec& spec, const KernelPlan& plan,
                          const DeviceFacts& device);

// Of the three, the one that pages of so many rows are read by; any other plan stays.
KernelPlan plan_for_pages(const AttentionSpec& spec, int page_size, const KernelPlan& plan,
                          const DeviceFacts& device);

// Of plans, in their order, what pages of so many rows are read by: those that bring boxes of rows
// which such pages do not have copy these row by row, or are left out.
std::vector<KernelPlan> plans_for_pages(const AttentionSpec& spec, int page_size,
                                        std::vector<KernelPlan> plans, const DeviceFacts& device);

}  // namespace attune
