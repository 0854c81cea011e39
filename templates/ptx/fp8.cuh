// Elements of fp8 (e4m3) as pairs of 16 bits, which hold each of them: exponent and fraction are
// moved to where the wider type has them, the sign to its top. What comes of that is the value over
// a power of two, the difference of the exponents' biases, and so are subnormal numbers. NaN (0x7f)
// becomes 480. Integer instructions do it all: a kernel of cvt.rn.f16x2.e4m3x2 and conversions to
// bf16 by way of fp32 did not gain from more warps on an H200 (docs/fp8_cache.md).
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Of four elements those at bytes 0 and 2, and those at bytes 1 and 3, over 2^8, as fp16.
ATT_FN void widen_fp8_to_f16(unsigned bytes, unsigned& even, unsigned& odd) {
  even = (bytes << 7 & 0x3f803f80u) | (bytes << 8 & 0x80008000u);
  odd = (bytes >> 1 & 0x3f803f80u) | (bytes & 0x80008000u);
}
constexpr float kFp8OfF16 = 0x1p8f;

// The same over 2^120, as bf16.
ATT_FN void widen_fp8_to_bf16(unsigned bytes, unsigned& even, unsigned& odd) {
  even = (bytes << 4 & 0x07f007f0u) | (bytes << 8 & 0x80008000u);
  odd = (bytes >> 4 & 0x07f007f0u) | (bytes & 0x80008000u);
}

// A pair of bf16 times 2^120, exactly. A multiplication of its own is from sm_90 on.
ATT_FN unsigned times_2_120(unsigned pair) {
  unsigned out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(0x7b807b80u), "r"(0x80008000u));
  return out;
}

}  // namespace att
