// A CTA's copy of a tile of rows from global to shared memory.
#pragma once

#include "templates/ptx/cp_async.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

// from + step, in a way the compiler cannot see through: it would keep every multiple of the step in
// registers across the whole kv loop (28 of them at d 128), which spills.
ATT_FN const char* next_source(const char* from, long long step) {
  asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(step));
  return from;
}

// Starts the copy of kRows rows of kDim 2-byte elements, row r at `from` + r * stride_bytes, into a
// RowLayout tile at `to`; rows from `valid_rows` on and the padding columns become zeros. The caller
// commits the group.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_rows(unsigned to, const char* from, long long stride_bytes, int valid_rows) {
  using Layout = RowLayout<padded_dim(kDim)>;
  constexpr int kUnits = Layout::kUnits;
  constexpr int kCopies = kRows * kUnits;
  constexpr bool kPadded = kUnits * 8 != kDim;
  const int thread = opaque(thread_index()) & 1023;
  if constexpr (kThreads % kUnits == 0 && kCopies % kThreads == 0) {
    // Each thread stays in its column and goes down a fixed number of rows a copy.
    constexpr int kRowStep = kThreads / kUnits;
    const int row = thread / kUnits;
    const int unit = thread % kUnits;
    const char* source = from + row * stride_bytes + unit * 16;
    const long long source_step = kRowStep * stride_bytes;
    if (valid_rows >= kRows && !kPadded) {
#pragma unroll
      for (int i = 0; i < kRows / kRowStep; ++i) {
        cp_async_16(to + Layout::offset(row + i * kRowStep, unit), source);
        source = next_source(source, source_step);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows / kRowStep; ++i) {
        cp_async_16_or_zero(to + Layout::offset(row + i * kRowStep, unit), source,
                            row + i * kRowStep < valid_rows && unit * 8 < kDim);
        source = next_source(source, source_step);
      }
    }
  } else {
#pragma unroll
    for (int first = 0; first < kCopies; first += kThreads) {
      const int index = first + thread;
      if (first + kThreads <= kCopies || index < kCopies) {
        const int row = index / kUnits;
        const int unit = index % kUnits;
        cp_async_16_or_zero(to + Layout::offset(row, unit), from + row * stride_bytes + unit * 16,
                            row < valid_rows && unit * 8 < kDim);
      }
    }
  }
}

}  // namespace att
