// The softmax of `accuracy: strict`: the reference of the steady loop is the largest score so far,
// so that the largest exponential of a row is 1, whatever the data.
#pragma once

#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

// The scores to exponentials, in place. Where a score of the warp's rows is above its row's
// reference, references become the largest scores, and true is returned: what was summed before is
// to be multiplied by `correction`, of each row; the sums have been. The lanes ask each other only
// then, and only then is a maximum more than one of integers (highest_score()).
template <bool kIsInside>
ATT_FN bool softmax_following(const Context& c, Scores& s, RowState& rows, const Position& at,
                              bool full, float (&correction)[2]) {
  // A constant scale becomes the exponentials' own.
  constexpr bool kIsPlain = !spec::kHasScore && kMaskUnscaled;
  constexpr float kFactor = kIsPlain ? spec::kSoftmaxScale * kLog2E : kScoreFactor;
  if constexpr (kIsPlain) {
    if (!full) mask_scores<kIsInside>(c, s, at);
  } else {
    apply_score<kIsInside>(c, s, at, full);
  }
  const auto to_log2 = [](float score) { return plus_score_offset(score * kFactor); };
  const auto none_above = [&](const float(&highest)[2]) {
    return all_lanes(to_log2(highest[0]) <= rows.maximum[0] &&
                     to_log2(highest[1]) <= rows.maximum[1]);
  };
  float highest[2] = {highest_score(s, 0, 0.0f), highest_score(s, 1, 0.0f)};
  bool raised = !none_above(highest);
  // 0 stands for scores all of which are negative.
  if (raised && !all_lanes(highest[0] > 0.0f && highest[1] > 0.0f)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float negative = highest_negative_score(s, half);
      highest[half] = highest[half] > 0.0f ? highest[half] : negative;
    }
    raised = !none_above(highest);
  }
  if (raised) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.maximum[half];
      rows.maximum[half] = math_max(before, to_log2(quad_max(highest[half])));
      rows.reference[half] = rows.maximum[half] == -infinity() ? 0.0f : rows.maximum[half];
      correction[half] = math_exp2(before - rows.reference[half]);
      rows.sum[half] *= correction[half];
      rows.of_rounded.scale(half, correction[half]);
    }
  }
  exponentials(s, rows, kFactor,
               [&](int half, int) { return plus_score_offset(-rows.reference[half]); });
  return raised;
}

// The exponentials as the product will have them, in place, and their sums. (Packed at once they
// would take the place of those that the product before still reads: C7513.)
ATT_FN void round_exponentials(Scores& s, RowState& rows) {
  if constexpr (!kSumsRounded) return;
#pragma unroll
  for (int i = 0; i < kPieceKeys / 4; ++i) {
    unpack_2<spec::kDType>(pack_2<spec::kDType>(s[2 * i], s[2 * i + 1]), s[2 * i], s[2 * i + 1]);
    rows.of_rounded.add(i % 2, s[2 * i], s[2 * i + 1]);
  }
}

// Two of them packed, some of a piece's dropped.
ATT_FN unsigned pack_rounded(float low, float high) {
  if constexpr (!kSumsRounded || !kBf16) return pack_2<spec::kDType>(low, high);
  return byte_permute(__builtin_bit_cast(unsigned, low), __builtin_bit_cast(unsigned, high),
                      0x7632);
}
ATT_FN void pack_rounded(const Context& c, const Scores& s, Probabilities& p, const Position& at) {
#pragma unroll
  for (int step = 0; step < kPvSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[step][i] = pack_rounded(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    }
    drop_step(c, p, step, at);
  }
}

}  // namespace sm90
}  // namespace att
