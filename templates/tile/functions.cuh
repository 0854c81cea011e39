// Functions that few expressions use: a kernel has this file where its mask, score or sink does.
// Without branches, as those of head_support.cuh. Absolute errors about 2^-22 where no other is
// given.
#pragma once

#include "templates/tile/head_support.cuh"

namespace att {

// x = quadrant * pi / 2 + rest, |rest| <= 0.8; of an x beyond 65536 roughly, of an infinite one
// NaN.
struct Angle {
  int quadrant;
  float rest;
};
#if ATT_DEVICE_CODE
ATT_FN float multiply_add(float x, float y, float z) {
  float out;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(x), "f"(y), "f"(z));
  return out;
}
ATT_FN Angle angle_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23, adding which rounds to an integer
  const float shifted = multiply_add(x, 0.63661977f, kRound);
  const float n = shifted - kRound;
  // pi / 2 in three parts: a product of the first with n is taken from x without an error.
  float rest = multiply_add(n, -0x1.921fb0p+0f, x);
  rest = multiply_add(n, -0x1.5110b4p-22f, rest);
  rest = multiply_add(n, -0x1.846988p-48f, rest);
  return {__builtin_bit_cast(int, shifted), rest > 0.8f ? 0.8f : rest < -0.8f ? -0.8f : rest};
}
#else
ATT_FN Angle angle_of(float x) {
  constexpr double kRound = 0x1.8p52;
  const double wide = x;
  const double shifted = wide * 0x1.45f306dc9c883p-1 + kRound;
  const float rest = static_cast<float>(wide - (shifted - kRound) * 0x1.921fb54442d18p+0);
  return {static_cast<int>(__builtin_bit_cast(long long, shifted) & 3), rest > 0.8f    ? 0.8f
                                                                        : rest < -0.8f ? -0.8f
                                                                                       : rest};
}
#endif
// sin(rest + quadrant * pi / 2), by minimax polynomials of sine and cosine (errors 2^-27).
ATT_FN float sin_of(int quadrant, float rest) {
  const float z = rest * rest;
  const float sine = rest + rest * z * (-0.16666654f + z * (0.008332090f + z * -0.00019505237f));
  const float cosine =
      1.0f - 0.5f * z + z * z * (0.041666646f + z * (-0.0013887251f + z * 2.4424919e-5f));
  const float size = quadrant & 1 ? cosine : sine;
  return quadrant & 2 ? -size : size;
}
ATT_FN float math_sin(float x) {
  const Angle angle = angle_of(x);
  return sin_of(angle.quadrant, angle.rest);
}
ATT_FN float math_cos(float x) {
  const Angle angle = angle_of(x);
  return sin_of(angle.quadrant + 1, angle.rest);
}

// Near zero a minimax polynomial times x (relative error 2^-26), elsewhere that of log2(1 - erf) up
// to 4, where erf is 1.
ATT_FN float math_erf(float x) {
  const float size = math_abs(x), z = x * x;
  float near = -0.00060903536f;
  near = near * z + 0.0050119618f;
  near = near * z - 0.026778908f;
  near = near * z + 0.11282141f;
  near = near * z - 0.37612525f;
  near = near * z + 1.1283791f;
  const float t = size < 4.0f ? size : 4.0f;
  float log = 0.00029366300f;
  log = log * t - 0.0044967653f;
  log = log * t + 0.032484464f;
  log = log * t - 0.15079497f;
  log = log * t - 0.91830343f;
  log = log * t - 1.6274498f;
  log = log * t - 0.00014986889f;
  const float far = 1.0f - math_exp2(log);
  const float result = size < 0.875f ? near * x : x < 0.0f ? -far : far;
  return x == x ? result : x;
}

// log(1 + exp(x)).
ATT_FN float math_softplus(float x) {
  return math_max(x, 0.0f) + math_log(1.0f + math_exp2(math_abs(x) * -1.4426950408889634f));
}

// x^y by 2^(y log2 |x|), whose relative error grows with the exponent's size: about 2^-22 of it.
ATT_FN float math_pow(float x, float y) {
  const float size = math_abs(x);
  const int floor = math_floor(y);
  const bool is_large = math_abs(y) >= 16777216.0f;  // an even integer, or infinite
  const bool is_whole = is_large || static_cast<float>(floor) == y;
  const bool is_odd = !is_large && is_whole && (floor & 1) != 0;
  // A logarithm below 0 is NaN.
  const float base = is_whole || size == size + size ? size : x;
  const float power = math_exp2(y * math_log2(base));
  const float result = y == 0.0f || base == 1.0f ? 1.0f : power;
  return is_odd && __builtin_bit_cast(int, x) < 0 ? -result : result;
}

}  // namespace att
