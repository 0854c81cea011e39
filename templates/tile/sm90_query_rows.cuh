// Rows of dQ on their way out of a warp's accumulators.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/softmax_scale.cuh"
#include "templates/tile/transpose.cuh"

namespace att {
namespace sm90 {

// Two rows of dQ, `row` and the eighth one behind it, in four blocks of 8 columns from `column` on,
// of which each lane of a quad has the accumulators' part.
ATT_FN void store_query_rows(const BackwardParams& p, const Sequence& sequence, int h, int row,
                             int column, const float (&numbers)[4][4]) {
  const float scale = softmax_scale(p);
  const int own = column + thread_index() % 4 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] =
          pack_2<spec::kDType>(numbers[w][2 * half] * scale, numbers[w][2 * half + 1] * scale);
    }
    transpose_quad(words);
    const int own_row = row + 8 * half;
    if (own_row < queries_of(p, sequence) && own < spec::kHeadDimQk) {
      store_global_16(
          static_cast<char*>(p.d_q) + 2 * (query_offset(sequence, p.d_q_stride, h, own_row) + own),
          words);
    }
  }
}

}  // namespace sm90
}  // namespace att
