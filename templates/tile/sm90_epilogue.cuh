// The end of a work item: normalise O, judge whether the frozen maximum held, store O and the LSE.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

ATT_FN int warpgroup_barrier(int warpgroup) { return 1 + warpgroup; }

// Sums the rows over the four threads that share them, divides O, and leaves the natural-log LSE in
// rows.sum. True when a row of this thread overflowed: P >= 0, so a sum below the limit bounds
// every exponential, and O is finite where no product overflowed.
ATT_FN bool normalise(const Context& c, Output& o, RowState& rows, int row) {
  float inverse[2];
  bool overflowed = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const bool inside = row + 8 * half < c.q_len;
    if (!(sum < kFrozenLimit)) overflowed = overflowed || inside;
    float reference = rows.reference[half];
    float factor = 1.0f;
    if constexpr (spec::kHasSink) {
      const float logit = sink(c) * kLog2E;
      const float top = sum == 0.0f ? logit : math_max(reference, logit);
      factor = sum == 0.0f ? 0.0f : math_exp2(reference - top);
      sum = sum * factor + math_exp2(logit - top);
      reference = top;
    }
    inverse[half] = sum == 0.0f ? 0.0f : factor / sum;
    if constexpr (spec::kHasDropout) inverse[half] *= dropout_keep_scale(c);
    rows.sum[half] = sum == 0.0f ? -infinity() : (reference + math_log2(sum)) * kLn2;
  }
  float finite = 0.0f;  // NaN once an element is not
#pragma unroll
  for (int i = 0; i < spec::kHeadDimV / 2; ++i) {
    if constexpr (plan::kFrozenMax) finite = o[i] * 0.0f + finite;
    o[i] *= inverse[i / 2 % 2];
  }
  return overflowed || (finite != 0.0f && row < c.q_len);
}

// O through shared memory to global memory by TMA, which leaves out the rows past q_len. The
// warpgroup's previous store may still be reading `buffer`.
ATT_FN void stage_output(const Output& o, unsigned buffer, int warpgroup) {
  const int lane = thread_index() % 32;
  const int row = thread_index() % kWarpgroupThreads / 32 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < spec::kHeadDimV / 16; ++step) {
    unsigned packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] = pack_2<spec::kDType>(o[8 * step + 2 * i], o[8 * step + 2 * i + 1]);
    }
    stmatrix_x4(swizzled(buffer + step / 4 * kQSlabBytes, row, step % 4 * 2 + lane / 16), packed);
  }
  fence_shared_for_async();
}

ATT_FN void store_output(const TensorMap* o_map, unsigned buffer, const Context& c, int first_row) {
#pragma unroll
  for (int slab = 0; slab < kVSlabs; ++slab) {
    tma_store(o_map, buffer + slab * kQSlabBytes, slab * kSlabColumns, first_row, c.h, c.b);
  }
  tma_store_commit();
}

ATT_FN void store_lse(const Context& c, const RowState& rows, int row) {
  if (c.params.lse == nullptr || thread_index() % 4 != 0) return;
  float* lse = c.params.lse + (static_cast<long long>(c.b) * c.params.heads + c.h) * c.q_len;
  if (row < c.q_len) lse[row] = rows.sum[0];
  if (row + 8 < c.q_len) lse[row + 8] = rows.sum[1];
}

}  // namespace sm90
}  // namespace att
