// Rows of a matrix as fp32: as they lie in memory where that serves, else brought together.
#pragma once

#include "templates/cpu/vector.h"

namespace att {

// The first of some rows, and how many floats one is from the next.
struct Rows {
  const float* data;
  long stride;
};

// `count` rows of kDim elements, `stride` apart, into rows of kWidth floats. What is beyond kDim,
// and the rows from `count` to `padded`, is zero.
template <int kDim, int kRows, int kWidth>
ATT_INLINE Rows copy_rows(const Storage* from, long stride, int count, int padded,
                          float (&copy)[kRows][kWidth]) {
  for (int row = 0; row < count; ++row) {
    for (int i = 0; i < kDim; ++i) copy[row][i] = to_float(from[i]);
    for (int i = kDim; i < kWidth; ++i) copy[row][i] = 0.0f;
    from += stride;
  }
  for (int row = count; row < padded; ++row) {
    for (int i = 0; i < kWidth; ++i) copy[row][i] = 0.0f;
  }
  return {&copy[0][0], kWidth};
}

// fp32 rows that lie close together serve as they are; others are brought together, which for
// strided rows saves cache sets and TLB entries.
template <int kDim, int kRows>
ATT_INLINE Rows fp32_rows(const Storage* from, long stride, int count, int padded,
                          float (&copy)[kRows][kDim]) {
  if (spec::kDType == DType::f32 && stride == kDim && count == padded) {
    return {reinterpret_cast<const float*>(from), kDim};
  }
  return copy_rows<kDim>(from, stride, count, padded, copy);
}

}  // namespace att
