// The online softmax of a piece: where references are still to be found, or were no good fixed.
#pragma once

#include "templates/tile/magnitude.cuh"
#include "templates/tile/sm90_key_pieces.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

// What was summed with a frozen reference may be so large that the factor which brings it to a new
// one is smaller than any float: there it is applied by halves.
constexpr int kCorrections = plan::kFrozenMax && spec::kHasMask && !kRecentre ? 2 : 1;

// Whether an item's first piece sets O. It is zero before where the reference may be the constant,
// so that with kSharesFirst this is one copy less; under masks 2 % of the compile time. (Others
// lose 0.2 to 0.5 % of their speed.)
constexpr bool kZeroesFirst = !kSharesFirst && !(kConstantReference && spec::kHasMask &&
                                                 !spec::kHasDropout && kColumnsV <= 128);

ATT_FN float corrected(float x, float correction) {
#pragma unroll
  for (int i = 0; i < kCorrections; ++i) x *= correction;
  return x;
}

// With kAnyMagnitude: what is larger, log2, is rounded by more than the exponentials have room for.
// An item with such a maximum fails, and is then done exactly. What pieces of an item weigh is told
// by the difference of their references, which may be rounded by little.
constexpr float kLargestMaximum = kCutsKeys ? 0x1p13f : kBf16 ? 0x1p27f : 0x1p25f;
ATT_FN bool is_large(float maximum) {
  return maximum != -infinity() && !(math_abs(maximum) < kLargestMaximum);
}

// The largest of a tile's scores where it would overflow in log2 units. It is a live key's.
ATT_FN float with_finite_log2(float score) {
  return score == -infinity() ? score : math_max(score, -0x1p125f / kScoreFactor);
}

ATT_FN void subtract_maxima(Scores& s, const float (&maximum)[2]) {
#pragma unroll
  for (int i = 0; i < kPieceKeys / 2; ++i) s[i] = rounded_sum(s[i], -maximum[i / 2 % 2]);
}

// A step of the online softmax: raises the maximum to this tile's, and scales what was summed
// before, which is nothing in the `first`. `offset`: of the reference above the maximum.
// `keeps_reference`, only with kSharesFirst: the reference stays. `exact`, only with kAnyMagnitude:
// maxima are subtracted from scores before anything is multiplied.
ATT_FN void softmax_running(const Context& c, Scores& s, RowState& rows, Output& o,
                            const Position& at, bool full, bool first, float offset,
                            bool keeps_reference, [[maybe_unused]] bool exact) {
  apply_score<false>(c, s, at, full);
  float correction[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tile_maximum = -infinity();
#pragma unroll
    for (int i = 0; i < kPieceKeys / 2; ++i) {
      if (i / 2 % 2 == half) tile_maximum = math_max(tile_maximum, s[i]);
    }
    tile_maximum = quad_max(tile_maximum);
    if (kSharesFirst && keeps_reference) {
      correction[half] = 1.0f;
      continue;
    }
    // With kTracks the maximum may lie elsewhere.
    const float old_reference = kTracks && rows.maximum[half] != -infinity()
                                    ? rows.reference[half]
                                    : rows.maximum[half] + offset;
    if constexpr (kAnyMagnitude) {
      const float in_log2 = plus_score_offset(with_finite_log2(tile_maximum) * kScoreFactor);
      rows.maximum[half] = math_max(rows.maximum[half], exact ? tile_maximum : in_log2);
    } else {
      rows.maximum[half] =
          math_max(rows.maximum[half], plus_score_offset(tile_maximum * kScoreFactor));
    }
    rows.reference[half] = (rows.maximum[half] == -infinity() ? 0.0f : rows.maximum[half]) + offset;
    float change = old_reference - rows.reference[half];
    if constexpr (kAnyMagnitude) change *= exact ? kReferenceUnit : 1.0f;
    correction[half] = math_exp2(change / kCorrections);
    rows.sum[half] = corrected(rows.sum[half], correction[half]);
  }
#pragma unroll
  for (int i = 0; i < kColumnsV / 2; ++i) {
    o[i] = kZeroesFirst && first ? 0.0f : corrected(o[i], correction[i / 2 % 2]);
  }
  if constexpr (kAnyMagnitude) {
    const float base[2] = {exact ? rows.reference[0] : 0.0f, exact ? rows.reference[1] : 0.0f};
    const float shift[2] = {exact ? 0.0f : plus_score_offset(-rows.reference[0]),
                            exact ? 0.0f : plus_score_offset(-rows.reference[1])};
    subtract_maxima(s, base);
    exponentials(s, rows, kScoreFactor, [&](int half, int) { return shift[half]; });
  } else {
    exponentials(s, rows, kScoreFactor,
                 [&](int half, int) { return plus_score_offset(-rows.reference[half]); });
  }
}

}  // namespace sm90
}  // namespace att
