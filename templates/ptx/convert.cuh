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

// And back.
template <DType kType>
ATT_FN void unpack_2(unsigned pair, float& low, float& high) {
  if constexpr (kType == DType::bf16) {
    low = __builtin_bit_cast(float, pair << 16);
    high = __builtin_bit_cast(float, pair & 0xffff0000u);
  } else {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
}

// The nearest float of the 2-byte type.
template <DType kType>
ATT_FN float rounded(float x) {
  float out;
  if constexpr (kType == DType::bf16) {
    out = __builtin_bit_cast(float, pack_2<kType>(0.0f, x));
  } else {
    asm("{\n.reg .b16 half;\ncvt.rn.f16.f32 half, %1;\ncvt.f32.f16 %0, half;\n}"
        : "=f"(out)
        : "f"(x));
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
