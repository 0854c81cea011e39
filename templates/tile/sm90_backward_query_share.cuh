// dQ of a tile in the sm90a backward's main kernel: a consumer warpgroup leaves dS of its keys in
// shared memory, multiplies its share of all keys' dS with K, and adds that up in global memory.
// `c`: the Consumer of sm90_backward_consumer.cuh.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/reduce.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_listed.cuh"
#include "templates/tile/sm90_backward_packed_rows.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_sums.cuh"

namespace att {
namespace sm90 {

// dS of tile n to shared memory, as rows of queries; of its steps of 16 those from kFirst on.
template <int kFirst, int kLast, typename Consumer>
ATT_FN void store_steps_of_ds(Consumer& c, unsigned n) {
  // Beside what is known of the item or left of P there is no register for what follows from it.
  const int own_thread = kLoadsKeysApart || kKeepsRests ? opaque(c.thread) : c.thread;
  const int lane = own_thread % 32;
  const unsigned slab = c.shared.d_s(n & 1) + c.warpgroup * kQSlabBytes;
  // Of step's 16 x 16 block of dS^T the four 8 x 8 matrices are (keys 0..7, queries 0..7), (keys
  // 8..15, queries 0..7), and the same of queries 8..15; each is stored transposed.
  const int row = lane / 16 * 8 + lane % 8;
  const int unit = own_thread / 32 * 2 + lane / 8 % 2;
#pragma unroll
  for (int step = kFirst; step < kLast; ++step) {
    stmatrix_x4_trans(swizzled(slab, step * 16 + row, unit), c.ds_operand[step]);
  }
}
// All of it is there.
template <typename Consumer>
ATT_FN void tell_ds(Consumer& c, unsigned n) {
  fence_shared_for_async();
  if constexpr (kDkFromShared) {
    named_barrier_sync(warpgroup_barrier(c.warpgroup), kWarpgroupThreads);
  } else {
    sync_warp();
  }
  c.warp_arrive(c.shared.ds_full(n & 1));
}
template <typename Consumer>
ATT_FN void store_ds(Consumer& c, unsigned n) {
  store_steps_of_ds<0, kTileQ / 16>(c, n);
  tell_ds(c, n);
}

// The warpgroup's share of dQ of the tile whose dS is number `n`.
template <typename Consumer>
ATT_FN void issue_dq(Consumer& c, unsigned n) {
  const int row = kSharesDqRows ? c.warpgroup * kDqRows : 0;
  const unsigned ds =
      wgmma_descriptor(c.shared.d_s(0) + row * kRowBytes, kQSlabBytes) + (n & 1) * (kDsBytes / 16);
  const int column = first_column_of_share(c.warpgroup);
  const unsigned k = wgmma_descriptor(
      c.shared.k() + column / kSlabColumns * kKvSlabBytes + column % kSlabColumns * 2,
      kKvSlabBytes);
  wgmma_fence();
  if constexpr (kTransposesDq) {
    plan::multiply_dq<2, kQSlabBytes / 16, kRowBytes, 4 * kRowBytes>(c.d_q, k, ds);
  } else {
    plan::multiply_dq<kRowBytes, 4 * kRowBytes, 2, kQSlabBytes / 16>(c.d_q, ds, k);
  }
  wgmma_commit();
}

// Adds the warpgroup's share of dQ to what other CTAs have added.
template <typename Consumer>
ATT_FN void add_dq(Consumer& c, float* sums) {
  float* const to = sums + (kKeepsRests ? opaque(c.thread) : c.thread) * 4;
  for_columns_of_head(c.warpgroup, c.thread / 32, [&](int j) {
    reduce_add_4(to + j * 512, c.d_q[4 * j], c.d_q[4 * j + 1], c.d_q[4 * j + 2], c.d_q[4 * j + 3]);
  });
}

template <typename Consumer>
ATT_FN float* sums_of(Consumer& c, int index) {
  return c.p.d_q_sums + sums_offset(index, c.warpgroup);
}

// With kLoadsKeysApart: a negative index is ~ that of a tile to which nobody else adds.
template <typename Consumer>
ATT_FN void bring_dq(Consumer& c, int index) {
  if (index >= 0) {
    add_dq(c, sums_of(c, index));
    return;
  }
  const ListedItem item = load_listed_item(c.shared.item_slot(c.parity));
  const auto [h, tile] = tile_of_sums(c.p, item.sums, ~index);
  store_share(c.p, item.own, h, tile, c.warpgroup,
              *reinterpret_cast<const float(*)[kDqNumbers / 4][4]>(&c.d_q));
}

// dQ of the tile whose dS is number `n` is there.
template <typename Consumer>
ATT_FN void end_dq(Consumer& c, unsigned n, int index) {
  [[maybe_unused]] float* const to = sums_of(c, index);
  c.warp_arrive(c.shared.ds_empty(n & 1));
  if (!c.has_sums) mbarrier_wait(c.shared.sums_ready(), c.parity);
  c.has_sums = true;
  if constexpr (kTakesTurns) mbarrier_wait(c.shared.turn_taken(n), c.shared.turn_parity(n));
  if constexpr (kLoadsKeysApart) {
    bring_dq(c, index);
  } else {
    if (!c.is_dropped) add_dq(c, to);
  }
  if constexpr (kTakesTurns) {
    sync_warp();
    c.warp_arrive(c.shared.turn_used(n));
  }
}

}  // namespace sm90
}  // namespace att
