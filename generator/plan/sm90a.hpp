// What the sm90a family's plans and their cost model share.
#pragma once

#include "generator/plan/cost.hpp"
#include "generator/plan/plan.hpp"

namespace attune::sm90a {

using Schedule = Sm90aPlan::Schedule;

constexpr int kRows = 64;  // query rows of a warpgroup
// What K and V of the heads that are worked on together may take of L2: of 50 MB on an H200, the
// rest is for Q, O and the next group (16, 32 and 64 MB were tried).
constexpr std::int64_t kGroupBytes = 32 << 20;

// Of a work item: queries of each of its heads.
inline int item_queries(const Sm90aPlan& tile) { return tile.warpgroups * kRows / tile.heads; }

inline const Sm90aPlan& tile_of(const KernelPlan& plan) { return std::get<Sm90aPlan>(plan.tile); }

// One that lists packed sequences' items or makes ranges of what the mask reads; it zeroes the
// counter.
bool has_launch_in_front(const AttentionSpec& spec);

// Whether O is staged for TMA where Q was: where there is no room for a buffer of its own, which is
// faster where there is (d 64, causal: 3 to 6 %).
bool stages_in_q(const AttentionSpec& spec, const Sm90aPlan& tile);

// The cost model; family.hpp.
PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
              const DeviceFacts& device);
ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work);

}  // namespace attune::sm90a
