// Functions of the oracles that run on a device, the same text for every target.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"

namespace att {

// e^x to fp64's precision for x <= 0, and to 1e-10 above; 0 below -700, and e^700 from there on.
// 2^n e^r with |r| <= ln 2 / 2 where x is not positive, Taylor to r^13.
ATT_FN double exp_exact(double x) {
  if (x != x) return x;
  if (x < -700) return 0;
  if (x > 700) x = 700;
  const int n = static_cast<int>(x * 1.4426950408889634 - 0.5);
  const double r = x - n * 0.6931471805599453;
  double sum = 1;
#pragma unroll
  for (int i = 13; i > 0; --i) sum = 1 + sum * r * (1.0 / i);
  return sum * __builtin_bit_cast(double, static_cast<long long>(n + 1023) << 52);
}

// What products are made of in place of an element: the nearest tf32, of two the larger in size,
// where the spec says so.
ATT_FN float operand(float x) {
  if constexpr (tolerance::kRoundsOperands) {
    if (!(math_abs(x) < infinity())) return x;
    return __builtin_bit_cast(float, (__builtin_bit_cast(unsigned, x) + 0x1000u) & 0xffffe000u);
  }
  return x;
}

// An error in units of what is allowed; above 1 it is wrong.
ATT_FN float excess(float out, float value, float limit) {
  if (value != value) return out != out ? 0.0f : infinity();
  if (math_abs(value) == infinity() || !(math_abs(out) < infinity())) {
    return out == value ? 0.0f : infinity();
  }
  const float error = math_abs(out - value);
  if (error == 0.0f) return 0.0f;
  return limit > 0.0f ? error / limit : infinity();
}

}  // namespace att
