// The register-blocked product that both halves of attention are: C[row][lane] += sum over depth of
// A(row, depth) * B[depth][lane], where lanes are queries. A is K or V as it lies in memory, one
// scalar broadcast at a time; B is Q or P with its queries side by side, so that softmax needs no
// horizontal operation and neither K nor V is ever transposed. (In the backward pass lanes are
// keys, too, and A is Q or dO.)
#pragma once

#include "templates/cpu/register_block.h"
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

template <int kRows, int kColumns>
ATT_INLINE void load_block(const float* from, long stride, Vec (&c)[kRows][kColumns]) {
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
#pragma clang loop unroll(full)
    for (int column = 0; column < kColumns; ++column) {
      c[row][column] = load(from + row * stride + column * kLanes);
    }
  }
}
template <int kRows, int kColumns>
ATT_INLINE void store_block(const Vec (&c)[kRows][kColumns], float* to, long stride) {
#pragma clang loop unroll(full)
  for (int row = 0; row < kRows; ++row) {
#pragma clang loop unroll(full)
    for (int column = 0; column < kColumns; ++column) {
      store(to + row * stride + column * kLanes, c[row][column]);
    }
  }
}

// C = A B of `rows` rows, a multiple of kRows.
template <int kRows, int kColumns>
ATT_INLINE void multiply(const float* a, long a_row_stride, const float* b, long b_stride,
                         int depth, float* c, long c_stride, int rows) {
  for (int row = 0; row < rows; row += kRows) {
    Vec sums[kRows][kColumns] = {};
    multiply_add(a + row * a_row_stride, a_row_stride, 1, b, b_stride, depth, sums);
    store_block(sums, c + row * c_stride, c_stride);
  }
}

// C += A^T B of `rows` columns of A, a multiple of kRows.
template <int kRows, int kColumns>
ATT_INLINE void add_transposed(const float* a, long a_stride, const float* b, long b_stride,
                               int depth, float* c, long c_stride, int rows) {
  for (int row = 0; row < rows; row += kRows) {
    Vec sums[kRows][kColumns];
    load_block(c + row * c_stride, c_stride, sums);
    multiply_add(a + row, 1, a_stride, b, b_stride, depth, sums);
    store_block(sums, c + row * c_stride, c_stride);
  }
}

}  // namespace att
