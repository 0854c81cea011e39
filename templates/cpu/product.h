// The register-blocked product that both halves of attention are: C[row][lane] += sum over depth of
// A(row, depth) * B[depth][lane], where lanes are queries. A is K or V as it lies in memory, one
// scalar broadcast at a time; B is Q or P with its queries side by side, so that softmax needs no
// horizontal operation and neither K nor V is ever transposed.
#pragma once

#include "templates/cpu/vector.h"

namespace att {

// kRows * kColumns accumulators stay in registers. Per step of depth: kColumns loads of B, kRows
// broadcasts of A and kRows * kColumns multiply-adds.
template <int kRows, int kColumns>
ATT_INLINE void multiply_add(const float* a, long a_row_stride, long a_depth_stride, const float* b,
                             long b_stride, int depth, Vec (&c)[kRows][kColumns]) {
  for (int i = 0; i < depth; ++i) {
    Vec lanes[kColumns];
#pragma clang loop unroll(full)
    for (int column = 0; column < kColumns; ++column) lanes[column] = load(b + column * kLanes);
#pragma clang loop unroll(full)
    for (int row = 0; row < kRows; ++row) {
      const Vec scalar = broadcast(a[row * a_row_stride]);
#pragma clang loop unroll(full)
      for (int column = 0; column < kColumns; ++column) c[row][column] += scalar * lanes[column];
    }
    a += a_depth_stride;
    b += b_stride;
  }
}

}  // namespace att
