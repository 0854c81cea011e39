// From the raw products of Q K^T to what the softmax reads: scores in log2 units, dead elements at
// minus infinity.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/row_mask.cuh"

namespace att {

// Without a score function the scale folds into the exponential's multiply-add: the accumulators
// stay as the product left them and kScoreFactor brings them to log2 units. A scale that is not
// known to be positive would turn the maximum round, so it is applied first.
constexpr bool kFoldScale = !spec::kHasScore && !spec::kScaleAtLaunch && spec::kSoftmaxScale > 0.0f;
constexpr float kScoreFactor = kFoldScale ? spec::kSoftmaxScale * kLog2E : 1.0f;

// What a lane's accumulator elements stand for: lane 4g + t of block m and n-tile n holds queries
// q0 + 16m + g + {0, 8} and keys k0 + 8n + 2t + {0, 1}. Calls f(element, row, column) with row =
// at_row(query) and the column counted from k0 + 2t. Rows beyond q_len act as the last one, so that
// they neither read out of bounds nor lack live keys; they are never stored.
template <int kBlocks, int kTiles, typename R, typename F>
ATT_FN void for_each_score(float (&s)[kBlocks][kTiles][4], const Context& c, int q0,
                           const R& at_row, const F& f) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = at_row(min_i32(q0 + 16 * m + lane / 4 + 8 * half, c.q_len - 1));
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          f(s[m][n][2 * half + e], row, 8 * n + e);
        }
      }
    }
  }
}

// Products to scores; dead elements to minus infinity unless the tile is full, a condition that the
// whole warp shares. Branching costs less than a second copy of the code around it.
template <int kBlocks, int kTiles>
ATT_FN void finish_scores(float (&s)[kBlocks][kTiles][4], const Context& c, int q0, int k0,
                          bool full) {
  const int first_key = k0 + lane_index() % 4 * 2;
  if constexpr (!kFoldScale) {
    const float scale = spec::kScaleAtLaunch ? c.params.softmax_scale : spec::kSoftmaxScale;
    for_each_score(
        s, c, q0, [](int q) { return q; },
        [&](float& x, int q, int column) {
          x = (spec::kHasScore ? score(c, x * scale, q, first_key + column) : x * scale) * kLog2E;
        });
  }
  if (!full) {
    for_each_score(
        s, c, q0, [&](int q) { return row_mask(c, q, first_key); },
        [&](float& x, const RowMask& row, int column) {
          x = is_live(c, row, column) ? x : -infinity();
        });
  }
}

}  // namespace att
