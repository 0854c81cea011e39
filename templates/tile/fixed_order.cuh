// The order in which the kernels of batch-invariant specs add up what a row's keys come to, where
// the number of a key is all that decides: those of few queries and those of many do the same
// additions, and so give the same bits.
//
// Keys are cut into fixed pieces (templates/work_items.h), a piece into units of 64. Unit u is of
// chain u % kChains. A chain adds up its units in order, 16 keys at a time. Then a piece's chains
// are folded, one after the other, and an item's pieces.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/rounded.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/scores.cuh"
#include "templates/tile/softmax.cuh"
#include "templates/work_items.h"

namespace att {

constexpr int kChains = 4;
constexpr int kChainUnitKeys = 64;
constexpr int kChainStepKeys = 16;

// By so much, log2, a row's scores may exceed its reference before it is raised. Each raise costs a
// pass over O, and in tiles of many rows each some row is raised, without it. Exponentials up to
// 2^8 lose nothing; with `accuracy: strict` the largest are to be exact.
constexpr float kChainSlack = spec::kIsStrict ? 0.0f : 8.0f;

// ---- Pieces.

// The pieces [first, last] that keys from bounds.begin to bounds.end lie in; none where there are
// no such keys.
struct PieceRange {
  int first, last;
};
ATT_FN PieceRange pieces_of(const KvBounds& bounds) {
  if (bounds.begin >= bounds.end) return {0, -1};
  return {fixed_piece_count(bounds.begin + 1) - 1, fixed_piece_count(bounds.end) - 1};
}

// Those of a piece's keys that may be within `bounds`, from the beginning of fixed keys on.
struct PieceKeys {
  int begin, end;
};
ATT_FN PieceKeys keys_of_piece(const KvBounds& bounds, int piece) {
  const long long begin = fixed_piece_begin(piece), behind = fixed_piece_begin(piece + 1);
  const int first = bounds.begin / kFixedPieceKeys * kFixedPieceKeys;
  return {begin > first ? static_cast<int>(begin) : first,
          behind < bounds.end ? static_cast<int>(behind) : bounds.end};
}

// Roundings are spelled out, so that both kernels have the same.

// ---- A step of a chain.

// As modified_score() of scores.cuh.
template <typename Query, typename Key>
ATT_FN float fixed_score(const Context& c, float product, float scale, Query q, Key key) {
  if constexpr (spec::kHasScore) {
    const float given = spec::kScaleAtLaunch ? rounded_product(product, scale) : product;
    if constexpr (kAnyMagnitude) return score_core(c, given, q, key);
    const float x = rounded_product(score_core(c, given, q, key), kScoreMultiplier * kLog2E);
    return kScoreOffset != 0.0f ? x + kScoreOffset * kLog2E : x;
  }
  return rounded_product(product, scale * kLog2E);
}

// An element's exponential; shift: minus the reference.
ATT_FN float fixed_exponential(float score, float shift) {
  if constexpr (kAnyMagnitude) return math_exp2(log2_above(score, -shift));
  return math_exp2(kScoreFactor == 1.0f ? score + shift
                                        : rounded_multiply_add(score, kScoreFactor, shift));
}

// Whether a step's largest score raises a row's reference. No other row has a say.
ATT_FN bool is_raised(float top, float reference) {
  return top > reference + from_log2(kChainSlack);
}

// Takes a row's new reference, where `top` asks for one. What O is to be multiplied by.
ATT_FN float raise_row(float& reference, float& sum, float top) {
  const float raised = is_raised(top, reference) ? top : reference;
  const float rescale = math_exp2(as_log2(reference - finite(raised)));
  reference = raised;
  sum = rounded_product(sum, rescale);
  return rescale;
}

// What a warp of few queries does with a step.
struct FixedArithmetic {
  template <typename Query, typename Key>
  static ATT_MEMBER float modified_score(const Context& c, float product, float scale, Query q,
                                         Key key) {
    return fixed_score(c, product, scale, q, key);
  }

  // Raises references of rows whose scores ask for it, and scales what was summed.
  template <int kBlocks, int kTiles, int kOTiles>
  static ATT_MEMBER void raise(RowState<kBlocks>& rows, const float (&s)[kBlocks][kTiles][4],
                               float (&o)[kBlocks][kOTiles][4]) {
    float tops[kBlocks][2];  // of this lane's scores
    bool none = true;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float maximum = math_max(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kTiles; ++n) {
          maximum = math_max(maximum, math_max(s[m][n][2 * half], s[m][n][2 * half + 1]));
        }
        tops[m][half] = rounded_product(maximum, kScoreFactor);
        none &= !is_raised(tops[m][half], rows.reference[m][half]);
      }
    }
    if (all_lanes(none)) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float rescale =
            raise_row(rows.reference[m][half], rows.sum[m][half], quad_max(tops[m][half]));
#pragma unroll
        for (int n = 0; n < kOTiles; ++n) {
          o[m][n][2 * half] = rounded_product(o[m][n][2 * half], rescale);
          o[m][n][2 * half + 1] = rounded_product(o[m][n][2 * half + 1], rescale);
        }
      }
    }
  }

  // s = the exponentials, added to the sums.
  template <int kBlocks, int kTiles>
  static ATT_MEMBER void exponentiate(RowState<kBlocks>& rows, float (&s)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = -finite(rows.reference[m][half]);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n][e] = fixed_exponential(s[m][n][e], shift);
            rows.sum[m][half] += s[m][n][e];
          }
        }
      }
    }
  }
};

// ---- Folding one result into another.

// What is multiplied with both.
struct FoldFactors {
  float before, after;
};

// Folds a row's reference and sum. Not where the second has met no live key: it changes nothing.
ATT_FN FoldFactors fold_statistics(float& reference, float& sum, float its_reference,
                                   float its_sum) {
  const float raised = math_max(reference, its_reference);
  const FoldFactors by = {math_exp2(as_log2(reference - raised)),
                          math_exp2(as_log2(its_reference - raised))};
  reference = raised;
  sum = rounded_multiply_add(its_sum, by.after, rounded_product(sum, by.before));
  return by;
}
ATT_FN float folded(float o, float its_o, const FoldFactors& by) {
  return rounded_multiply_add(its_o, by.after, rounded_product(o, by.before));
}

}  // namespace att
