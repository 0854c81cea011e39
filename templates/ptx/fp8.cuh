// Elements of fp8 (e4m3) as fp16, which holds each of them.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/math.cuh"

namespace att {

// Four elements, the lowest byte first, as two pairs.
ATT_FN void widen_fp8(unsigned bytes, unsigned& low, unsigned& high) {
#if __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
#else
  // Exponent and fraction, seven places to the left, are an fp16 of 2^-8 times the value, subnormal
  // ones too. NaN becomes 480, which is no value of e4m3's.
  const auto widened = [](unsigned halves) {
    const unsigned bits = (halves >> 1 & 0x3f803f80u) | (halves & 0x80008000u);
    return multiply_2<DType::f16>(bits, 0x5c005c00u);
  };
  low = widened(byte_permute(bytes, 0, 0x1404));
  high = widened(byte_permute(bytes, 0, 0x3424));
#endif
}

// A pair of fp16.
ATT_FN void unpack_f16(unsigned pair, float& low, float& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}

}  // namespace att
