// The order in which the kernels of batch-invariant specs add up what a row's keys come to, where
// the number of a key is all that decides: those of few queries and those of many do the same
// additions, and so give the same bits.
//
// Keys are cut into fixed pieces (templates/work_items.h), a piece into units of 64. Unit u is of
// chain u % kChains. A chain adds up its units in order, 16 keys at a time. Then a piece's chains
// are folded, one after the other, and an item's pieces.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/quad.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kChains = 4;
constexpr int kChainUnitKeys = 64;
constexpr int kChainStepKeys = 16;

// By so much, log2, a row's scores may exceed its reference before it is raised. Each raise costs a
// pass over O, and in tiles of many rows each some row is raised, without it. Exponentials up to
// 2^8 lose nothing; with `accuracy: strict` the largest are to be exact.
constexpr float kChainSlack = spec::kIsStrict ? 0.0f : 8.0f;

// Whether a step's largest score raises a row's reference. No other row has a say.
ATT_FN bool is_raised(float top, float reference) { return top > reference + kChainSlack; }

// Raises the references of rows whose scores of a step ask for it, and scales what was summed.
template <int kBlocks, int kTiles, int kOTiles>
ATT_FN void raise_rows(RowState<kBlocks>& rows, const float (&s)[kBlocks][kTiles][4],
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
      tops[m][half] = maximum * kScoreFactor;
      none &= !is_raised(tops[m][half], rows.reference[m][half]);
    }
  }
  if (all_lanes(none)) return;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.reference[m][half];
      const float top = quad_max(tops[m][half]);
      const float raised = is_raised(top, before) ? top : before;
      const float rescale = math_exp2(before - finite(raised));
      rows.reference[m][half] = raised;
      rows.sum[m][half] *= rescale;
#pragma unroll
      for (int n = 0; n < kOTiles; ++n) {
        o[m][n][2 * half] *= rescale;
        o[m][n][2 * half + 1] *= rescale;
      }
    }
  }
}

// ---- Folding one result into another. Roundings are spelled out, so that they are the same
// wherever this is done.

ATT_FN float rounded_product(float x, float y) {
  float out;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}
ATT_FN float rounded_multiply_add(float x, float y, float z) {
  float out;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(x), "f"(y), "f"(z));
  return out;
}

// What is multiplied with both.
struct FoldFactors {
  float before, after;
};

// Folds a row's reference and sum. Not where the second has met no live key: it changes nothing.
ATT_FN FoldFactors fold_statistics(float& reference, float& sum, float its_reference,
                                   float its_sum) {
  const float raised = math_max(reference, its_reference);
  const FoldFactors by = {math_exp2(reference - raised), math_exp2(its_reference - raised)};
  reference = raised;
  sum = rounded_multiply_add(its_sum, by.after, rounded_product(sum, by.before));
  return by;
}
ATT_FN float folded(float o, float its_o, const FoldFactors& by) {
  return rounded_multiply_add(its_o, by.after, rounded_product(o, by.before));
}

}  // namespace att
