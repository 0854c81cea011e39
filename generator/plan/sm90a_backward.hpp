// What the sm90a family's backward plans and their cost model share.
#pragma once

#include <algorithm>

#include "generator/expr/lowering.hpp"
#include "generator/plan/cost.hpp"
#include "generator/plan/plan.hpp"
#include "generator/plan/sm90a_parts.hpp"

namespace attune::sm90a_backward {

constexpr int kKeys = 64;  // of a warpgroup
constexpr int kTileQ = 64;
constexpr int kLongTileQ = 128;  // of narrow heads

inline const Sm90aBackwardPlan& tile_of(const KernelPlan& plan) {
  return std::get<Sm90aBackwardPlan>(plan.tile);
}

inline bool is_long(const Sm90aBackwardPlan& tile) { return tile.tile_q == kLongTileQ; }

// Whose dQ is made transposed, and dK of what lies in shared memory.
inline bool is_tall(const Sm90aBackwardPlan& tile) { return tile.tile_q % kTileQ != 0; }

inline int tile_kv(const Sm90aBackwardPlan& tile) { return kKeys * tile.warpgroups; }

inline bool is_wide(const AttentionSpec& spec) { return slabs(spec.head_dim_qk) > 1; }

inline bool is_narrow(const AttentionSpec& spec) {
  return std::max(spec.head_dim_qk, spec.head_dim_v) <= 64;
}

// Whether a warp of its own loads the keys of such items, and all heads have sums of dQ: above head
// dim 64 no warp has registers enough to bring others' sums to rows meanwhile.
inline bool loads_keys_apart(const AttentionSpec& spec, const Sm90aBackwardPlan& tile) {
  return is_packed(spec) || (tile.takes_items && (is_wide(spec) || tile.keys_apart));
}

// Whether a mask takes few instructions an element and leaves few tiles partial, as far as its form
// says it: no look-up and no division.
inline bool has_short_mask(const AttentionSpec& spec) {
  return !spec.mask || (!expr::contains_load(spec.mask) && !expr::contains_division(spec.mask));
}

// The cost model; family.hpp.
PlanCost plan_cost(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device);
Tiling tiling(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
              const DeviceFacts& device);
ShapeCost shape_cost(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& shape,
                     const DeviceFacts& device, const LiveWork& work);

}  // namespace attune::sm90a_backward
