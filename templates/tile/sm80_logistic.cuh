// The softmax with frozen references of scores that share reciprocals
// (templates/tile/logistic.cuh).
#pragma once

#include "templates/tile/logistic.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

// Products to denominators.
template <int kBlocks, int kTiles>
ATT_FN void to_denominators(float (&s)[kBlocks][kTiles][4], const Context& c) {
  const float step = spec::kScaleAtLaunch ? c.params.softmax_scale * kLogisticStep : kLogisticStep;
#pragma unroll
  for (int i = 0; i < kBlocks * kTiles * 4; ++i) {
    float& x = s[i / 4 / kTiles][i / 4 % kTiles][i % 4];
    x = logistic_denominator(x, step);
  }
}

// Denominators to exponentials, added to the sums: four of a row, of two n-tiles, share a
// reciprocal.
template <int kBlocks, int kTiles>
ATT_FN void exponentiate_inverses(RowState<kBlocks>& rows, float (&s)[kBlocks][kTiles][4]) {
  static_assert(kTiles % 2 == 0);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = kScoreOffset * kLog2E - finite(rows.reference[m][half]);
      const int e = 2 * half;
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const SharedReciprocal inverse = share_reciprocal(
            s[m][n][e], s[m][n][e + 1], s[m][n + 1][e], s[m][n + 1][e + 1], kInverseToScore);
        const float of_pair[2] = {inverse.of_ab, inverse.of_cd};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float(&pair)[4] = s[m][n + i];
          const float first = of_pair[i] * pair[e + 1] + shift;
          pair[e + 1] = math_exp2(of_pair[i] * pair[e] + shift);
          pair[e] = math_exp2(first);
          rows.sum[m][half] += pair[e];
          rows.sum[m][half] += pair[e + 1];
        }
      }
    }
  }
}

}  // namespace att
