// Scores that are a logistic function of the product, a softcap's first of all: what their forward
// kernels share.
//
// An element takes two exponentials and a reciprocal, and the unit that makes them would have half
// as many clocks again as the products. So four elements of a row share a reciprocal.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/shared_reciprocal.cuh"

namespace att {

// The multiplier of a score in log2 units. Of larger ones, and in fp32, more roundings than one
// would be seen, and dead elements of smaller ones might count.
constexpr float kLogisticHeight = kScoreMultiplier * kLog2E;
constexpr bool kSharesReciprocals = spec::kHasScore && kScoreIsLogistic &&
                                    spec::kDType != DType::f32 && kLogisticHeight >= 2.0f &&
                                    kLogisticHeight <= 1024.0f;

// Denominators are multiples of it and at most 1, so that products of four are floats, and the
// bound costs nothing: what would be larger has an inverse next to 0 anyway.
constexpr float kDenominatorUnit = 0x1p-24f;
// What a dead element has instead: its score is so far below all others that its exponential is 0,
// and nothing of it reaches its neighbours.
constexpr float kDeadDenominator = -0x1p-31f;

// (1 + exp2(x)) * kDenominatorUnit; `step`: x of a product. Of NaN 0, so that the four that it is
// in have NaN: of a live element it is its row's, and a dead one's is masked.
ATT_FN float logistic_denominator(float product, float step) {
  const float power = math_exp2(product * step + kLogisticShift);
  float y;
  asm("fma.rn.sat.f32 %0, %1, %2, %2;" : "=f"(y) : "f"(power), "f"(kDenominatorUnit));
  return y;
}

// Brings inverses of denominators to scores in log2 units, but for the offset.
constexpr float kInverseToScore = kLogisticHeight * kDenominatorUnit;

}  // namespace att
