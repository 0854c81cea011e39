// A CTA's copy of a tile of rows from global to shared memory.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/math.cuh"
#include "templates/tile/elements.cuh"

namespace att {

// The least power of two that is at least `n`.
ATT_FN constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Starts the copy of kRows rows of kDim elements, row r at `from` + r * stride_bytes, into the tile
// at `to`; rows from `valid_rows` on and the padding columns become zeros. The caller commits the
// group. `thread` is the caller's number among the kThreads that share the copy.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_rows(unsigned to, const char* from, long long stride_bytes, int valid_rows,
                      int thread) {
  using Layout = typename Element::template Rows<padded_dim(kDim)>;
  // Each thread stays in its column and goes down a fixed number of rows a copy, so that a copy
  // costs one addition. Where a row is no power of two of units, some threads have no column.
  constexpr int kUnits = Layout::kUnits;
  constexpr int kColumns = power_of_two_from(kUnits);
  constexpr int kRowStep = kThreads / kColumns;
  const int unit = thread & (kColumns - 1);
  const int row = thread / kColumns;
  const char* source = from + row * stride_bytes + unit * 16;
  const long long source_step = kRowStep * stride_bytes;
  const bool has_column = kUnits == kColumns || unit < kUnits;
  if (valid_rows >= kRows && kUnits * Element::kOfUnit == kDim) {
#pragma unroll
    for (int i = 0; i < kRows; i += kRowStep) {
      if (has_column && (kRows % kRowStep == 0 || row + i < kRows)) {
        cp_async_16(to + Layout::offset(row + i, unit), source);
      }
      source += source_step;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRows; i += kRowStep) {
      if (has_column && (kRows % kRowStep == 0 || row + i < kRows)) {
        cp_async_16_or_zero(to + Layout::offset(row + i, unit), source,
                            row + i < valid_rows && unit * Element::kOfUnit < kDim);
      }
      source += source_step;
    }
  }
}

template <int kRows, int kDim, int kThreads>
ATT_FN void load_rows(unsigned to, const char* from, long long stride_bytes, int valid_rows) {
  load_rows<kRows, kDim, kThreads>(to, from, stride_bytes, valid_rows, thread_index());
}

}  // namespace att
