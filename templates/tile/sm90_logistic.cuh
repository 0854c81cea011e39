// The steady loop's softmax of scores that share reciprocals (templates/tile/logistic.cuh).
#pragma once

#include "templates/tile/logistic.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

// Elements of a row share a reciprocal by fours: of eight in line the even pairs, and the odd ones.
ATT_FN constexpr bool is_first_of_four(int i) { return i % 2 == 0 && i % 8 <= 2; }

// Calls f(i, x) for two pairs of denominators, whose scores are x * s[i + 1] and x * s[i].
template <typename F>
ATT_FN void for_inverses(const Scores& s, int first, const F& f) {
  const SharedReciprocal inverse =
      share_reciprocal(s[first], s[first + 1], s[first + 4], s[first + 5], kInverseToScore);
  f(first, inverse.of_ab);
  f(first + 4, inverse.of_cd);
}

// Denominators to exponentials, and their sum; wait() as of exponentials().
template <typename Wait>
ATT_FN void logistic_exponentials(Scores& s, RowState& rows, const Wait& wait) {
  const float shift[2] = {plus_score_offset(-rows.reference[0]),
                          plus_score_offset(-rows.reference[1])};
#pragma unroll
  for (int first = 0; first < kPieceKeys / 2; ++first) {
    if (!is_first_of_four(first)) continue;
    if (kBeforeWait > 0 && first == kBeforeWait / 8 * 8) wait();
    const int half = first / 2 % 2;
    for_inverses(s, first, [&](int i, float inverse) {
      const float a = inverse * s[i + 1] + shift[half], b = inverse * s[i] + shift[half];
      s[i] = math_exp2(a);
      s[i + 1] = math_exp2(b);
      rows.sum[half] += s[i];
      rows.sum[half] += s[i + 1];
    });
  }
  if (kBeforeWait == 0 || kBeforeWait == kPieceKeys / 2) wait();
}

// Products to denominators. A tile's mask stands between these and their inverses, where a dead
// element's NaN is gone before it meets others.
template <bool kIsInside>
ATT_FN void to_denominators(const Context& c, Scores& s, const Position& at, bool full) {
  const float step = spec::kScaleAtLaunch ? softmax_scale(c.params) * kLogisticStep : kLogisticStep;
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) s[i] = logistic_denominator(s[i], step);
  if (spec::kHasMask && !full) mask_scores<kIsInside>(c, s, at, kDeadDenominator);
}

// Products to scores in log2 units, but for their offset.
template <bool kIsInside>
ATT_FN void to_logistic_scores(const Context& c, Scores& s, const Position& at, bool full) {
  to_denominators<kIsInside>(c, s, at, full);
#pragma unroll
  for (int first = 0; first < kPieceKeys / 2; ++first) {
    if (!is_first_of_four(first)) continue;
    for_inverses(s, first, [&](int i, float inverse) {
      const float a = inverse * s[i + 1];
      s[i + 1] = inverse * s[i];
      s[i] = a;
    });
  }
}

// As softmax_frozen().
template <bool kTracking, typename Wait>
ATT_FN void softmax_logistic(const Context& c, Scores& s, RowState& rows, const Position& at,
                             bool full, float (&top)[2], unsigned& rises, bool& raised,
                             const Wait& wait, bool tracks) {
  if constexpr (kTracking) {
    to_logistic_scores<kFrozenIsInside>(c, s, at, full);
    raised = tracks && raise_references(s, rows, top, 1.0f, rises);
    exponentials(
        s, rows, 1.0f, [&](int half, int) { return plus_score_offset(-rows.reference[half]); },
        wait);
  } else {
    to_denominators<kFrozenIsInside>(c, s, at, full);
    logistic_exponentials(s, rows, wait);
  }
}

}  // namespace sm90
}  // namespace att
