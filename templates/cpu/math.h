// Elementary functions for score functions on the CPU: without branches or calls, so that a loop
// over them becomes vector code.
#pragma once

#include "templates/ptx/platform.cuh"

#if !ATT_DEVICE_CODE
namespace att {

// 2^x within 2 ulp up to 2^127 and 6e-6 beyond; 0 below 2^-126, inf from 2^128 on, NaN of NaN. The
// polynomial is that of templates/cpu/vector.h.
ATT_FN float math_exp2(float x) {
  x = x < -127.0f ? -127.0f : x;
  constexpr float kRound = 12582912.0f + 127.0f;
  const float shifted = (x > 127.0f ? 127.0f : x) + kRound;
  const float f = x - (shifted - kRound);
  float p = 0x1.41fbc6p-13f;
  p = p * f + 0x1.5f3e54p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  p = p * f + 1.0f;
  const float power = __builtin_bit_cast(float, __builtin_bit_cast(unsigned, shifted) << 23);
  return x >= 128.0f ? __builtin_inff() : p * power;
}

// log2(x) with an absolute error of 2^-23 near 1 and within 2 ulp elsewhere; -inf of 0, NaN below
// it. x = 2^e m with m in [sqrt(1/2), sqrt(2)); log(m) by the polynomial of Cephes' logf (Moshier).
ATT_FN float math_log2(float x) {
  constexpr int kSqrtHalf = 0x3f3504f3;
  const bool is_small = x < 0x1p-126f;
  const int bits = __builtin_bit_cast(int, is_small ? x * 0x1p23f : x);
  const int exponent = (bits - kSqrtHalf) >> 23;
  const float t = __builtin_bit_cast(float, bits - exponent * (1 << 23)) - 1.0f;
  float y = 7.0376836292e-2f;
  y = y * t - 1.1514610310e-1f;
  y = y * t + 1.1676998740e-1f;
  y = y * t - 1.2420140846e-1f;
  y = y * t + 1.4249322787e-1f;
  y = y * t - 1.6668057665e-1f;
  y = y * t + 2.0000714765e-1f;
  y = y * t - 2.4999993993e-1f;
  y = y * t + 3.3333331174e-1f;
  const float log_m = t + (y * t * t * t - 0.5f * t * t);
  const float result =
      log_m * 1.4426950408889634f + static_cast<float>(exponent - (is_small ? 23 : 0));
  const float special = x == 0.0f ? -__builtin_inff() : x > 0.0f ? x : __builtin_nanf("");
  return x > 0.0f && x < __builtin_inff() ? result : special;
}

// Within 2 ulp. Near zero, where 1 - 2 / (e^2x + 1) cancels, the polynomial of Cephes' tanhf
// (Moshier).
ATT_FN float math_tanh(float x) {
  const float size = __builtin_fabsf(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = x + x * (z * p);
  const float far =
      __builtin_copysignf(1.0f - 2.0f / (1.0f + math_exp2(size * 2.8853900817779268f)), x);
  return size < 0.625f ? near : x == x ? far : x;
}

}  // namespace att
#endif
