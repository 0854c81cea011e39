// Reductions into global memory: what several CTAs add to, none of them reads.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Whether there is reduce_add_4().
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kReducesFour = true;
#else
constexpr bool kReducesFour = false;
#endif

// Adds four fp32 at `to`, 16-byte aligned. sm_90 and later.
ATT_FN void reduce_add_4(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

// Takes four fp32 from `from`, 16-byte aligned, and leaves zeros. sm_90 and later.
ATT_FN void exchange_for_zeros_16(float* from, float (&values)[4]) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 zeros, old;\n"
      "mov.b64 low, 0;\nmov.b128 zeros, {low, low};\n"
      "atom.relaxed.gpu.global.exch.b128 old, [%4], zeros;\n"
      "mov.b128 {low, high}, old;\n"
      "mov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
      : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
      : "l"(from)
      : "memory");
}

}  // namespace att
