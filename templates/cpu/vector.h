// Clang's vector extension in the width of the plan, and the few operations that attention needs.
// Everything between this file and the end of the kernel is compiled for the plan's instruction
// set, which the source names itself: the object does not depend on the machine that compiled it.
#pragma once

#include "templates/kernels/head.cuh"

#if ATT_VECTOR_BYTES == 64
#pragma clang attribute push(                                                                   \
    __attribute__((target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,evex512"), \
                   min_vector_width(512))),                                                     \
    apply_to = function)
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#endif

#define ATT_INLINE static inline __attribute__((always_inline))

namespace att {

constexpr int kLanes = ATT_VECTOR_BYTES / 4;
typedef float Vec __attribute__((vector_size(ATT_VECTOR_BYTES)));
typedef int IntVec __attribute__((vector_size(ATT_VECTOR_BYTES)));
typedef float UnalignedVec __attribute__((vector_size(ATT_VECTOR_BYTES), aligned(4), may_alias));

ATT_INLINE Vec load(const float* from) { return *reinterpret_cast<const UnalignedVec*>(from); }
ATT_INLINE void store(float* to, Vec value) { *reinterpret_cast<UnalignedVec*>(to) = value; }
ATT_INLINE Vec broadcast(float value) { return value - Vec{}; }

// b where a is NaN: a running maximum skips NaN, which reaches the result through exp2.
ATT_INLINE Vec max_skip_nan(Vec a, Vec b) { return a > b ? a : b; }

// 2^x = 2^n 2^f, n = round(x), |f| <= 1/2; the polynomial is the relative minimax of degree 6
// (error 2e-9 before rounding, 0.7 ulp after it).
struct ExponentParts {
  Vec shifted;  // its low bits are the exponent of 2^n
  Vec n, rest;  // of x
};
// For x < 127; n is at least -127, for which the power's bits are those of zero.
ATT_INLINE ExponentParts exponent_parts(Vec x) {
  // 1.5 * 2^23, adding which rounds to an integer, and the exponent's bias on top.
  constexpr float kRound = 12582912.0f + 127.0f;
  x = x < -127.0f ? broadcast(-127.0f) : x;
  const Vec shifted = x + kRound;
  const Vec n = shifted - kRound;
  return {shifted, n, x - n};
}
ATT_INLINE Vec exp2_of_parts(Vec shifted, Vec f) {
  Vec p = broadcast(0x1.41fbc6p-13f);
  p = p * f + 0x1.5f3e54p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  p = p * f + 1.0f;
  return p * reinterpret_cast<Vec>(reinterpret_cast<IntVec>(shifted) << 23);
}

// 2^x for x <= 0 and what rounding leaves above, -inf and NaN included.
ATT_INLINE Vec exp2_nonpositive(Vec x) {
  const ExponentParts parts = exponent_parts(x);
  return exp2_of_parts(parts.shifted, parts.rest);
}
// 2^(x (1 + correction)), |correction| <= 2^-24. It makes up for the rounding of the factor that x
// was multiplied by, which would otherwise be the largest error of all.
ATT_INLINE Vec exp2_nonpositive(Vec x, float correction) {
  const ExponentParts parts = exponent_parts(x);
  return exp2_of_parts(parts.shifted, parts.n * correction + parts.rest);
}

// One stored element as fp32 and back, to nearest even.
struct Half {
  _Float16 bits;
};
struct BFloat {
  unsigned short bits;
};
ATT_INLINE float to_float(float value) { return value; }
ATT_INLINE float to_float(Half value) { return static_cast<float>(value.bits); }
ATT_INLINE float to_float(BFloat value) {
  return __builtin_bit_cast(float, static_cast<unsigned>(value.bits) << 16);
}
ATT_INLINE void from_float(float value, float& to) { to = value; }
ATT_INLINE void from_float(float value, Half& to) { to.bits = static_cast<_Float16>(value); }
ATT_INLINE void from_float(float value, BFloat& to) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<unsigned short>(is_nan ? (bits >> 16) | 0x40u : rounded);
}

template <DType kType>
struct StorageOf {
  using Type = BFloat;
};
template <>
struct StorageOf<DType::f16> {
  using Type = Half;
};
template <>
struct StorageOf<DType::f32> {
  using Type = float;
};
using Storage = typename StorageOf<spec::kDType>::Type;

}  // namespace att
