// The softmax of `accuracy: strict`: the steady loop's references follow the largest scores, so
// that the exponentials that decide a row are exact when they are rounded for the product with V.
#pragma once

#include "templates/tile/sm90_logistic.cuh"
#include "templates/tile/sm90_running.cuh"

namespace att {
namespace sm90 {

// A new largest score becomes the reference where its exponential would be more than this share of
// the row's sum so far, or, in log2 units, so far above the reference: a rounding of less is lost
// among the others'. (Simulated, normal numbers times 1 to 8, 1024 and 8192 keys: 1.02 of the error
// that references have which are always the largest score. A share of 1/16 makes it 1.04, 1/8
// 1.08; always, and a warp scales O in half of its pieces rather than in a tenth.)
constexpr float kLargestShareLog2 = -5.0f;
constexpr float kLargestLag = 8.0f;

// The scores to exponentials, in place. Where a row of the warp needs a new reference, rows take
// the largest of their scores, and true is returned: what was summed before is to be multiplied by
// `correction`, of each row; the sums have been. The lanes ask each other only then, and only then
// is a maximum more than one of integers (highest_score()).
template <bool kIsInside>
ATT_FN bool softmax_following(const Context& c, Scores& s, RowState& rows, const Position& at,
                              bool full, float (&correction)[2]) {
  // A constant scale becomes the exponentials' own.
  constexpr bool kIsPlain = !spec::kHasScore && kMaskUnscaled;
  constexpr float kFactor = kIsPlain             ? spec::kSoftmaxScale * kLog2E
                            : kSharesReciprocals ? 1.0f
                                                 : kScoreFactor;
  if constexpr (kIsPlain) {
    if (!full) mask_scores<kIsInside>(c, s, at);
  } else if constexpr (kSharesReciprocals) {
    to_logistic_scores<kIsInside>(c, s, at, full);
  } else {
    apply_score<kIsInside>(c, s, at, full);
  }
  // What maxima and references are in.
  const auto in_units = [](float score) {
    return kAnyMagnitude ? score : plus_score_offset(score * kFactor);
  };
  float limit[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // A thread has a quarter of the row's sum.
    const float lag = math_log2(rows.sum[half]) + (2.0f + kLargestShareLog2);
    limit[half] =
        math_max(rows.maximum[half], rows.reference[half] + from_log2(math_min(lag, kLargestLag)));
  }
  const auto none_above = [&](const float(&highest)[2]) {
    return all_lanes(in_units(highest[0]) <= limit[0] && in_units(highest[1]) <= limit[1]);
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
      rows.maximum[half] = math_max(before, in_units(quad_max(highest[half])));
      rows.reference[half] = rows.maximum[half] == -infinity() ? 0.0f : rows.maximum[half];
      correction[half] = math_exp2(as_log2(before - rows.reference[half]));
      rows.sum[half] *= correction[half];
    }
  }
  if constexpr (kAnyMagnitude) {
    subtract_maxima(s, rows.reference);
    exponentials(s, rows, kFactor, [&](int, int) { return 0.0f; });
  } else {
    exponentials(s, rows, kFactor,
                 [&](int half, int) { return plus_score_offset(-rows.reference[half]); });
  }
  return raised;
}

}  // namespace sm90
}  // namespace att
