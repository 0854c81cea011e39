// What backward kernels share of scores that are a logistic function of the product, a softcap's
// first of all.
//
// Of three exponentials and reciprocals an element the unit that makes them has half of a tile's
// clocks. So four elements share a reciprocal.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/shared_reciprocal.cuh"
#include "templates/tile/softmax_scale.cuh"

namespace att {

// Element e of the n-th block of 8 columns: mma's accumulators, and wgmma's.
template <int kBlocks>
ATT_FN float& element(float (&s)[kBlocks][4], int n, int e) {
  return s[n][e];
}
template <int kCount>
ATT_FN float& element(float (&s)[kCount], int n, int e) {
  return s[4 * n + e];
}

// What is learned under a function of the score changes with the score itself: the products are
// kept until dS is there, and P is worked out once more.
constexpr bool kKeepsProducts = kGradLoads > 0 && !kScoreGradIsOne;

// Not of fp32, which would see the roundings.
constexpr bool kSharesReciprocals = spec::kHasScore && kScoreIsLogistic && kLogisticSlope != 0.0f &&
                                    spec::kDType != DType::f32 && !kKeepsProducts &&
                                    !plan::kSplitReferences;

// 1 + exp2(x), for products of four of which there is room: of larger x its inverse is next to 0
// anyway. Never NaN, so that a dead element is not its neighbours' business.
ATT_FN float bounded_denominator(const Context& c, float product) {
  constexpr float kMost = 31.0f;
  const float s = spec::kScaleAtLaunch ? product * softmax_scale(c.params) : product;
  return 1.0f + math_exp2(math_min(s * kLogisticStep + kLogisticShift, kMost));
}

ATT_FN void invert_logistic(const float (&x)[4], float (&inverse)[4]) {
  const SharedReciprocal shared = share_reciprocal(x[0], x[1], x[2], x[3], 1.0f);
  inverse[0] = shared.of_ab * x[1];
  inverse[1] = shared.of_ab * x[0];
  inverse[2] = shared.of_cd * x[3];
  inverse[3] = shared.of_cd * x[2];
}

// Products to cores of their scores, by the four elements of a block of columns.
template <int kBlocks, typename Products>
ATT_FN void to_logistic_cores(const Context& c, Products& s) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float denominator[4], core[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) denominator[e] = bounded_denominator(c, element(s, n, e));
    invert_logistic(denominator, core);
#pragma unroll
    for (int e = 0; e < 4; ++e) element(s, n, e) = core[e];
  }
}

}  // namespace att
