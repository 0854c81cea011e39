// From the products of a tile to P and dS. A tile is rows that an item walks beside a block of the
// item's own, which lie in vector lanes: keys beside queries, or queries beside keys.
#pragma once

#include "templates/cpu/backward_rows.h"
#include "templates/cpu/dropout.h"
#include "templates/cpu/vector.h"
#include "templates/kernels/backward_head.cuh"

namespace att {

enum class Lanes { kKeys, kQueries };

constexpr int kStep = plan::kStep;  // rows of a tile
constexpr int kColumns = plan::kColumns;
constexpr int kBlockLanes = kColumns * kLanes;

using ScoreTile = float[kStep][kBlockLanes];
// What the score changes by with the product; one row where that is always 1.
using SlopeTile = float[kScoreGradIsOne ? 1 : kStep][kBlockLanes];
// The scaled products, where something is learned under a function of them.
constexpr bool kKeepsProducts = kGradLoads > 0 && !kScoreGradIsOne;
using ProductTile = float[kKeepsProducts ? kStep : 1][kBlockLanes];

// Which elements a tile has.
struct Box {
  int row0, rows;
  int lane0, lanes;
};

ATT_INLINE float softmax_scale(const ForwardParams& p) {
  return spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
}
ATT_INLINE float keep_scale(const ForwardParams& p) {
  return !spec::kHasDropout       ? 1.0f
         : spec::kDropoutAtLaunch ? p.dropout_keep_scale
                                  : spec::kDropoutKeepScale;
}

// Products to scores, those of dead elements -inf, and slopes. Full tiles without a
// score function do without.
template <Lanes kOf, bool kMasked>
static __attribute__((noinline)) void modify_tile(const Context& of, const Box& box, int width,
                                                  ScoreTile& s, SlopeTile& slopes,
                                                  ProductTile& products) {
  const Context c = of;
  const float scale = softmax_scale(c.params);
  for (int row = 0; row < box.rows; ++row) {
    const int walked = box.row0 + row;
    float* __restrict scores = s[row];
    float* __restrict slope = slopes[kScoreGradIsOne ? 0 : row];
    float* __restrict product = products[kKeepsProducts ? row : 0];
    // Nothing that the functions read is written here.
#pragma clang loop vectorize(assume_safety) interleave_count(1)
    for (int lane = 0; lane < width; ++lane) {
      const int own = box.lane0 + lane;
      // Queries past the end have no part in anything, but look-ups want them inside.
      const int q_idx = kOf == Lanes::kKeys ? walked : min_i32(own, c.q_len - 1);
      const int kv_idx = kOf == Lanes::kKeys ? own : walked;
      float value = scores[lane] * scale;
      if (kKeepsProducts) product[lane] = value;
      if (spec::kHasScore) {
        const ScoreAndGradient both = score_with_grad(c, value, q_idx, kv_idx);
        value = both.score;
        if (!kScoreGradIsOne) slope[lane] = both.gradient;
      }
      if (kMasked) {
        const bool live = kv_idx < c.kv_len && (!spec::kHasMask || mask(c, q_idx, kv_idx));
        value = live ? value : -kInfinity;
      }
      scores[lane] = value;
    }
  }
}

// A number a query: of the lanes, or of the rows.
template <Lanes kOf, int kVectors>
ATT_INLINE void lane_numbers(const float* numbers, Vec (&of)[kVectors]) {
#pragma clang loop unroll(full)
  for (int column = 0; column < kVectors; ++column) {
    if (kOf == Lanes::kQueries) of[column] = load(numbers + column * kLanes);
  }
}
template <Lanes kOf, int kVectors>
ATT_INLINE void row_number(const float* numbers, int row, Vec (&of)[kVectors]) {
#pragma clang loop unroll(full)
  for (int column = 0; column < kVectors; ++column) {
    if (kOf == Lanes::kKeys) of[column] = broadcast(numbers[row]);
  }
}

// Products times `factor` to P, which is at most 1: a score of 1e10 that is rounded otherwise than
// in the forward pass lies far above LSE.
template <Lanes kOf, int kVectors>
ATT_INLINE void probabilities(const float* references, float factor, int rows, ScoreTile& s) {
  Vec reference[kVectors];
  lane_numbers<kOf>(references, reference);
  for (int row = 0; row < rows; ++row) {
    row_number<kOf>(references, row, reference);
#pragma clang loop unroll(full)
    for (int column = 0; column < kVectors; ++column) {
      float* const at = &s[row][column * kLanes];
      const Vec exponent = (load(at) * factor - reference[column]) * kLog2E;
      store(at, exp2_nonpositive(exponent > 0.0f ? broadcast(0.0f) : exponent));
    }
  }
}

// dP to dS, of the score that the softmax took. Dropped elements, whose P is negative, become 0 in
// P.
template <Lanes kOf, int kVectors>
ATT_INLINE void score_gradients(const float* deltas, float kept_scale, int rows, ScoreTile& p,
                                ScoreTile& d) {
  Vec delta[kVectors];
  lane_numbers<kOf>(deltas, delta);
  for (int row = 0; row < rows; ++row) {
    row_number<kOf>(deltas, row, delta);
#pragma clang loop unroll(full)
    for (int column = 0; column < kVectors; ++column) {
      Vec probability = load(&p[row][column * kLanes]);
      Vec d_p = load(&d[row][column * kLanes]);
      if (spec::kHasDropout) {
        const IntVec bits = reinterpret_cast<IntVec>(probability);
        probability = reinterpret_cast<Vec>(bits & 0x7fffffff);
        d_p = bits < 0 ? Vec{} : d_p * kept_scale;
        store(&p[row][column * kLanes], bits < 0 ? Vec{} : probability);
      }
      store(&d[row][column * kLanes], probability * (d_p - delta[column]));
    }
  }
}

// The gradient of the score becomes that of the product. A dead element's slope may be anything.
template <int kVectors>
ATT_INLINE void multiply_by_slopes(const SlopeTile& slopes, int rows, ScoreTile& d) {
  for (int row = 0; row < rows; ++row) {
#pragma clang loop unroll(full)
    for (int column = 0; column < kVectors; ++column) {
      float* const at = &d[row][column * kLanes];
      const Vec gradient = load(at);
      store(at, gradient == 0.0f ? gradient : gradient * load(&slopes[row][column * kLanes]));
    }
  }
}

// Makes P of the dropped elements negative.
template <Lanes kOf>
static __attribute__((noinline)) void mark_dropped(const Context& c, const Box& box, ScoreTile& p) {
  const int row1 = box.row0 + box.rows, lane1 = box.lane0 + box.lanes;
  if (kOf == Lanes::kKeys) {
    drop_elements<Dropped::kNegative, kBlockLanes, 1>(c.params, c.b, c.h, &p[0][0], box.row0, row1,
                                                      box.lane0, lane1);
  } else {
    drop_elements<Dropped::kNegative, 1, kBlockLanes>(c.params, c.b, c.h, &p[0][0], box.lane0,
                                                      lane1, box.row0, row1);
  }
}

}  // namespace att
