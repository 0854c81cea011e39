// Attention forward for few queries whose V is the first columns of K (multi-head latent attention,
// DeepSeek-V2, 2024): the mla family, mma.sync.
//
// Every query head reads the same wide rows, so a row is brought to shared memory once and serves
// both products. An item is 16 or 32 rows, queries of the heads that share the cache; its keys are
// dealt out to `pieces` CTAs as in the decode family. A CTA walks its keys in tiles. O is as wide
// as 512 columns, which is too much for a warp: so the warps share out a tile's keys for Q K^T, put
// P into shared memory, and share out the columns for P V. Two barriers a tile: when all maxima are
// there, and when all of P is.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/mla_piece.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/stretches.cuh"

namespace att {

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ SmallTable table;
  __shared__ int share;

  if constexpr (plan::kTakesStretches) {
    LineSums& sums = *reinterpret_cast<LineSums*>(shared_memory);
    static_assert(sizeof(LineSums) <= kRingBytes);
    const int lines = lines_of_head(params), all = lines * params.kv_heads;
    const int stretches = stretches_of_line(all);
#pragma unroll 1
    for (int i = block_index(); i < stretches * all; i += block_count()) {
      const Line line = {i % all / lines, i % all % lines, lines};
      Stretch stretch(params, i / all, stretches, line);
      StretchPiece next;
#pragma unroll 1
      while (stretch.next(sums, next)) {
        attend_piece(params, next.piece, next.units, shared_memory, table, share);
        sync_threads();  // the next one's keys take the place of the results
      }
    }
    wait_for_launches_before();  // none ends before the one in front
    return;
  }
  if constexpr (spec::kIsPacked) wait_for_launches_before();
  const PieceOfItem own = piece_at(params, block_index());
  if (own.item.rows() <= 0) return;
  attend_piece(params, own, {own.piece, own.piece + 1, own.pieces}, shared_memory, table, share);
}

}  // namespace att
