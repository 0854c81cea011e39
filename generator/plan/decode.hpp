// What the decode family's plans and their cost model share.
#pragma once

#include "generator/plan/cost.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"

namespace attune::decode {

// Rows in shared memory are multiples of 32 bytes of what the cache holds.
inline int padded(const AttentionSpec& spec, int head_dim) {
  const int step = 32 / element_bytes(kv_dtype(spec));
  return (head_dim + step - 1) / step * step;
}
inline int padded_qk(const AttentionSpec& spec) { return padded(spec, spec.head_dim_qk); }
inline int padded_v(const AttentionSpec& spec) { return padded(spec, spec.head_dim_v); }

inline const DecodePlan& tile_of(const KernelPlan& plan) { return std::get<DecodePlan>(plan.tile); }

// Of K and V of a step's keys.
inline int step_bytes(const AttentionSpec& spec, const DecodePlan& tile) {
  const int scales = has_scaled_cache(spec) ? 2 * int{sizeof(float)} : 0;
  return tile.step_keys *
         ((padded_qk(spec) + padded_v(spec)) * element_bytes(kv_dtype(spec)) + scales);
}

// Else they are read from shared memory at every step.
bool queries_in_registers(const AttentionSpec& spec, const DecodePlan& tile);
// Whether CTAs of packed sequences find for themselves which item they have, all of its keys: no
// launch in front lists them.
bool finds_whole_items(const AttentionSpec& spec, const DecodePlan& tile);
// CTAs that a processor has room for, at least 1.
int resident(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);

// The cost model; family.hpp.
PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
              const DeviceFacts& device);
ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work);

}  // namespace attune::decode
