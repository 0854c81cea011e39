// Reductions into global memory: what several CTAs add to, none of them reads.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Adds four fp32 at `to`, 16-byte aligned. sm_90 and later.
ATT_FN void reduce_add_4(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

}  // namespace att
