// ldmatrix: four 8 x 8 matrices of 2-byte elements from shared memory into mma fragments. sm_75 and
// later.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Lane 8i + r gives the address of row r of matrix i; lane 4g + t receives elements [g][2t, 2t+1]
// of matrix i in out[i].
ATT_FN void ldmatrix_x4(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// The same with every matrix transposed: [2t, 2t+1][g].
ATT_FN void ldmatrix_x4_trans(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

}  // namespace att
