// Constants and bit tricks.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

ATT_FN constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000u); }

// floor(log2(x)) of a normal x > 0.
ATT_FN int exponent(float x) {
  return static_cast<int>(__builtin_bit_cast(unsigned, x) >> 23) - 127;
}

// 2^n for -126 <= n <= 127.
ATT_FN float power_of_two(int n) {
  return __builtin_bit_cast(float, static_cast<unsigned>(n + 127) << 23);
}

// Index of the highest set bit; x is not 0.
ATT_FN int highest_bit(unsigned x) {
  int index;
  asm("bfind.u32 %0, %1;" : "=r"(index) : "r"(x));
  return index;
}

ATT_FN int bit_count(unsigned x) {
  int count;
  asm("popc.b32 %0, %1;" : "=r"(count) : "r"(x));
  return count;
}

// Bytes of {b, a}, a low; each of the four nibbles of `selector` picks one, or, with its top bit
// set, that byte's sign eight times.
ATT_FN unsigned byte_permute(unsigned a, unsigned b, unsigned selector) {
  unsigned out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}

}  // namespace att
