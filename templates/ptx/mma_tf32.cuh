// mma.sync.m16n8k8 of tf32: the tensor core's product of a warp, fp32 accumulation. sm_80 and
// later.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// d += a b, a 16 x 8 row-major, b 8 x 8 column-major, with the fragment layouts of the PTX ISA:
// lane 4g + t holds a[g][t], a[g+8][t], a[g][t+4], a[g+8][t+4]; b[t][g], b[t+4][g]; and d[g][2t,
// 2t+1], d[g+8][2t, 2t+1].
ATT_FN void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The nearest tf32, of two the larger. An infinity and a NaN stay what they are.
ATT_FN unsigned round_to_tf32(unsigned x) {
  unsigned out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(__builtin_bit_cast(float, x)));
  return out;
}

}  // namespace att
