// The last tile of a packed sequence in the sm90a family's backward kernels: TMA, which knows no
// sequence, brings rows of the next one with it, and would store to them.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_cta.cuh"

namespace att {
namespace sm90 {

// Rows [first, kRows) of a matrix, by a warp.
template <int kSlabs, int kRows>
ATT_FN void clear_rows(unsigned matrix, int first) {
  const unsigned zeros[4] = {};
  constexpr int kUnits = kRowBytes / 16;  // of a row of a slab, wherever the swizzle puts them
  const int lane = thread_index() % 32;
#pragma unroll 1
  for (int row = first + lane / kUnits; row < kRows; row += 32 / kUnits) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      store_shared_16(matrix + (slab * kRows + row) * kRowBytes + lane % kUnits * 16, zeros);
    }
  }
}

// Of two matrices, one of Q's columns and one of V's, that have come to the barrier `raw`: the rows
// behind the sequence's own. Then each has its own barrier. The loader warp calls it.
template <int kRows>
ATT_FN void give_own_rows(unsigned raw, unsigned parity, int own_rows, unsigned of_qk,
                          unsigned qk_full, unsigned of_v, unsigned v_full) {
  mbarrier_wait(raw, parity);
  clear_rows<kQkSlabs, kRows>(of_qk, own_rows);
  clear_rows<kVSlabs, kRows>(of_v, own_rows);
  fence_shared_for_async();
  sync_warp();
  if (thread_index() % 32 != 0) return;
  mbarrier_arrive(qk_full);
  mbarrier_arrive(v_full);
}

// Of a warp's 16 rows of the matrix, which leave_key_rows() left, the first `count`.
template <int kHeadDim>
ATT_FN void store_key_rows(char* out, long long stride_bytes, const KeyRows& from, int row,
                           int count) {
  constexpr int kUnits = kHeadDim / 8;
#pragma unroll 1
  for (int i = thread_index() % 32; i < 16 * kUnits; i += 32) {
    const int at = i / kUnits, unit = i % kUnits;
    if (at < count) {
      copy_shared_to_global_16(
          out + at * stride_bytes + unit * 16,
          swizzled(from.matrix + unit / 8 * from.slab_bytes, row + at, unit % 8));
    }
  }
}

}  // namespace sm90
}  // namespace att
