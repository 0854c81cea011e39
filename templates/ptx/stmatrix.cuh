// stmatrix: mma fragments of four 8 x 8 matrices of 2-byte elements to shared memory. sm_90 and
// later.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// The inverse of ldmatrix_x4: lane 8i + r gives the address of row r of matrix i.
ATT_FN void stmatrix_x4(unsigned address, const unsigned (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

// The same with every matrix transposed.
ATT_FN void stmatrix_x4_trans(unsigned address, const unsigned (&in)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
      : "memory");
}

}  // namespace att
