// Attention forward for few queries on many keys (decoding): the decode family, mma.sync.
//
// What counts is that K and V are read once, at the speed of memory. All queries of the heads that
// share a K/V head are the rows of one item, and its keys are dealt out to `pieces` CTAs, within
// them to warps (Dao et al., "Flash-Decoding", 2023). Every warp goes its own way through its keys:
// it copies 16 or 32 of them at a time into a ring of buffers that is its own, so nothing but the
// copies is ever waited for. What the warps found is merged in shared memory; what the pieces
// found, by the CTA that arrives last: the result does not depend on which one that is.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/decode_piece.cuh"
#include "templates/tile/keys_ahead.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/stretches.cuh"

namespace att {

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ UnitTable table;
  __shared__ int share;

  if constexpr (plan::kTakesStretches) {
    LineSums& sums = *reinterpret_cast<LineSums*>(shared_memory);
    static_assert(sizeof(LineSums) <= kQOffset);
    const int stretches = stretches_of_line(params.kv_heads);
#pragma unroll 1
    for (int i = block_index(); i < stretches * params.kv_heads; i += block_count()) {
      Stretch stretch(params, i / params.kv_heads, stretches, {i % params.kv_heads, 0, 1});
      StretchPiece next;
#pragma unroll 1
      while (stretch.next(sums, next)) {
        attend_piece(params, next.piece, next.units, shared_memory, table, share);
        sync_threads();  // the next one's keys take the place of the results
      }
    }
    return;
  }
  if constexpr (spec::kIsPacked) {
    if constexpr (!kFindsItems) bring_keys_ahead(params, block_index());
    wait_for_launches_before();
  }
  const PieceOfItem own = piece_at(params, block_index());
  if (own.item.rows() <= 0) return;
  attend_piece(params, own, {own.piece, own.piece + 1, own.pieces}, shared_memory, table, share);
}

}  // namespace att
