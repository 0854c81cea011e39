// What the sm90a family's plans of batch-invariant specs have and need
// (templates/kernels/sm90_invariant_forward.cuh).
#pragma once

#include <fmt/format.h>

#include "generator/plan/family.hpp"
#include "generator/plan/sm90a.hpp"

namespace attune::sm90a {

// Of batch-invariant specs a tile is a unit of keys (templates/tile/fixed_order.cuh), and the
// kernel has no other form than this. Warpgroups, stages and the order of items are free.
inline constexpr int kUnitKeys = 64;

// What the pieces of a batch-invariant spec's items come to, behind `before` bytes
// (templates/tile/sm90_fixed_rows.cuh).
inline int folded_bytes(const AttentionSpec& spec, const Sm90aPlan& tile, int before) {
  if (!spec.batch_invariant) return 0;
  const int padding = (before + 127) / 128 * 128 - before;
  return padding + tile.warpgroups * kRows * spec.head_dim_v * int{sizeof(float)};
}

// Of batch-invariant specs: scores, P, a chain's O and its piece's. What masks and scores want for
// a while is spilled where chains end: 70 to 230 bytes at d 128; of three warpgroups
// 190 to 400 at d 64.
inline int invariant_registers(const AttentionSpec& spec) {
  return kUnitKeys / 2 + kUnitKeys / 4 + spec.head_dim_v + 44;
}

inline Status check_invariant(const Sm90aPlan& tile) {
  if (tile.tile_kv != kUnitKeys || tile.score_buffers != 1 || tile.q_in_registers ||
      tile.cluster != 1 || tile.frozen_max || tile.tma_store || tile.ping_pong ||
      tile.p_in_shared || tile.heads != 1 || tile.pieces != 1 || tile.warpgroups == 1) {
    return plan_unsupported(
        fmt::format("a batch-invariant spec has k{}, b1, c1, two or three warpgroups, and beside "
                    "these only stages "
                    "and an order of items",
                    kUnitKeys));
  }
  return ok_status();
}

}  // namespace attune::sm90a
