// Elements of a cache of fp8 (e4m3): 4 bits of exponent, 3 of the number, no infinity, all ones
// NaN. The text before it has what an element is in storage (StorageOf, from_float).
#pragma once

#include "templates/append/params.h"
#include "templates/kernels/append_head.cuh"

namespace att {

struct Fp8 {
  unsigned char bits;
};
template <>
struct StorageOf<DType::f8_e4m3> {
  using Type = Fp8;
};

// To the nearest, ties to even; what is larger than 448 becomes 448.
ATT_FN void from_float(float value, Fp8& to) {
#if ATT_DEVICE_CODE && __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  to.bits = static_cast<unsigned char>(pair);
#else
  const unsigned all = __builtin_bit_cast(unsigned, value);
  const unsigned size = all & 0x7fffffffu, sign = all >> 24 & 0x80u;
  // The rounded number's exponent and fraction follow one another, as fp8's do.
  const unsigned normal = (size + 0x7ffffu + (size >> 20 & 1u)) >> 20;
  // Added to 2^14, whose last bit is 2^-9, a small number is rounded as subnormal ones are.
  const unsigned small =
      __builtin_bit_cast(unsigned, __builtin_bit_cast(float, size) + 16384.0f) - 0x46800000u;
  constexpr unsigned kLargest = 0x7e, kBiases = (127 - 7) << 3;
  const unsigned bits = size > 0x7f800000u    ? 0x7fu
                        : size < 0x3c800000u  ? small
                        : size >= 0x43e00000u ? kLargest
                                              : normal - kBiases;
  to.bits = static_cast<unsigned char>(sign | bits);
#endif
}

template <typename To>
constexpr bool kHasScale = false;
template <>
constexpr bool kHasScale<Fp8> = true;

// What elements that go to a cache of `To` are multiplied by: one over the scale of a page's head.
template <typename To>
ATT_FN float inverse_scale(const CacheScales& scales, int page, int head) {
  if (!kHasScale<To> || scales.values == nullptr) return 1.0f;
  return 1.0f / scales.values[page * scales.slice + head * scales.head];
}

template <typename To>
ATT_FN void scaled_from_float(float value, float, To& to) {
  from_float(value, to);
}
ATT_FN void scaled_from_float(float value, float inverse, Fp8& to) {
  from_float(value * inverse, to);
}

}  // namespace att
