// Packed 2-byte floats.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

// fp32 to packed, `low` in the lower half, rounded to nearest even.
template <DType kType>
ATT_FN unsigned pack_2(float low, float high) {
  unsigned out;
  if constexpr (kType == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}

// Both halves multiplied, sm_90 and up.
template <DType kType>
ATT_FN unsigned multiply_2(unsigned a, unsigned b) {
  unsigned out;
  if constexpr (kType == DType::bf16) {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  }
  return out;
}

}  // namespace att
