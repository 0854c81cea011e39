// Roundings that are spelled out. Where a product meets a sum, a compiler contracts them in one
// kernel and not in another; these it leaves alone.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN float rounded_product(float x, float y) {
  float out;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}
ATT_FN float rounded_sum(float x, float y) {
  float out;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(y));
  return out;
}
ATT_FN float rounded_multiply_add(float x, float y, float z) {
  float out;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(x), "f"(y), "f"(z));
  return out;
}

}  // namespace att
