// From the raw products of Q K^T to what the softmax reads: scores in log2 units, or with
// kAnyMagnitude as they are, dead elements at minus infinity.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/magnitude.cuh"
#include "templates/tile/row_mask.cuh"

namespace att {

// Without a score function the scale folds into the exponential's multiply-add: the accumulators
// stay as the product left them and kScoreFactor brings them to log2 units. A scale that is not
// known to be positive would turn the maximum round, so it is applied first.
constexpr bool kFoldScale = !spec::kHasScore && !spec::kScaleAtLaunch && spec::kSoftmaxScale > 0.0f;
constexpr float kScoreFactor = kFoldScale ? spec::kSoftmaxScale * kLog2E : 1.0f;

// What a key weighs whose score is given. `shift`: minus the row's reference.
ATT_FN float exponential(float score, float shift) {
  if constexpr (kAnyMagnitude) return math_exp2(log2_above(score, -shift));
  return math_exp2(score * kScoreFactor + shift);
}

// What a lane's accumulator elements stand for: lane 4g + t of block m and n-tile n holds queries
// q0 + 16m + g + {0, 8} and keys k0 + 8n + 2t + {0, 1}. Calls f(m, n, e, row, column) with row =
// at_row(query) and the column counted from k0 + 2t. Rows beyond q_len act as the last one, so that
// they neither read out of bounds nor lack live keys; they are never stored.
template <int kBlocks, int kTiles, typename R, typename F>
ATT_FN void for_each_score(const Context& c, int q0, const R& at_row, const F& f) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = at_row(min_i32(q0 + 16 * m + lane / 4 + 8 * half, c.q_len - 1));
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) f(m, n, 2 * half + e, row, 8 * n + e);
      }
    }
  }
}

// A product as the softmax reads it. `scale`: of the spec, or the launch.
template <typename Query, typename Key>
ATT_FN float modified_score(const Context& c, float product, float scale, Query q, Key key) {
  if constexpr (kAnyMagnitude) {
    return score_core(c, spec::kScaleAtLaunch ? product * scale : product, q, key);
  } else if constexpr (spec::kHasScore) {
    const float x = score_core(c, spec::kScaleAtLaunch ? product * scale : product, q, key) *
                    (kScoreMultiplier * kLog2E);
    return kScoreOffset != 0.0f ? x + kScoreOffset * kLog2E : x;
  }
  return product * (scale * kLog2E);
}

// Products to scores.
template <int kBlocks, int kTiles>
ATT_FN void apply_score(float (&s)[kBlocks][kTiles][4], const Context& c, int q0, int k0) {
  if constexpr (!kFoldScale) {
    const int first_key = k0 + lane_index() % 4 * 2;
    const float scale = spec::kScaleAtLaunch ? c.params.softmax_scale : spec::kSoftmaxScale;
    for_each_score<kBlocks, kTiles>(
        c, q0, [](int q) { return q; },
        [&](int m, int n, int e, int q, int column) {
          s[m][n][e] = modified_score(c, s[m][n][e], scale, q, first_key + column);
        });
  }
}

// Which elements of a partial tile are live: find() before the products are there, apply() after. A
// mask that is not a range of keys a row is worked out in find(), one bit an element, so that its
// registers are never wanted together with the products': applied in one loop, ten operators spill
// 130 bytes at d 128.
template <int kBlocks, int kTiles>
struct LiveElements {
  static constexpr bool kAsBits = spec::kHasMask && !kRowIsRange;
  static constexpr int kWords = (kBlocks * kTiles * 4 + 31) / 32;
  unsigned words[kWords];

  static ATT_MEMBER int bit_of(int m, int n, int e) { return (m * kTiles + n) * 4 + e; }

  // Calls f(m, n, e, live).
  template <typename F>
  static ATT_MEMBER void for_each(const Context& c, int q0, int k0, const F& f) {
    const int first_key = k0 + lane_index() % 4 * 2;
    for_each_score<kBlocks, kTiles>(
        c, q0, [&](int q) { return row_mask(c, q, first_key); },
        [&](int m, int n, int e, const RowMask& row, int column) {
          f(m, n, e, is_live(c, row, column));
        });
  }

  ATT_MEMBER void find(const Context& c, int q0, int k0) {
    if constexpr (kAsBits) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = 0;
      for_each(c, q0, k0, [&](int m, int n, int e, bool live) {
        const int bit = bit_of(m, n, e);
        words[bit / 32] |= live ? 1u << bit % 32 : 0u;
      });
    }
  }

  // Dead elements to `dead`.
  ATT_MEMBER void apply(float (&s)[kBlocks][kTiles][4], const Context& c, int q0, int k0,
                        float dead = -infinity()) const {
    if constexpr (!kAsBits) {
      for_each(c, q0, k0,
               [&](int m, int n, int e, bool live) { s[m][n][e] = live ? s[m][n][e] : dead; });
      return;
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int bit = bit_of(m, n, e);
          if ((words[bit / 32] >> bit % 32 & 1u) == 0) s[m][n][e] = dead;
        }
      }
    }
  }
};

}  // namespace att
