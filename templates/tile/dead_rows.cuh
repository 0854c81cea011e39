// Rows of dO whose query sees no key: whatever they hold stays out of every gradient.
#pragma once

#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/load.cuh"

namespace att {

// load_rows() of rows of dO: those without live keys, whose reference is infinite, become zeros,
// whatever they hold.
template <int kRows, int kDim, int kThreads>
ATT_FN void load_live_rows(unsigned to, const char* from, long long stride_bytes, int valid_rows,
                           const float* references) {
  if constexpr (!spec::kHasMask && !spec::kHasScore) {
    load_rows<kRows, kDim, kThreads>(to, from, stride_bytes, valid_rows);
    return;
  }
  using Layout = typename Element::template Rows<padded_dim(kDim)>;
#pragma unroll 4
  for (int i = thread_index(); i < kRows * Layout::kUnits; i += kThreads) {
    const int row = i / Layout::kUnits;
    const int unit = i % Layout::kUnits;
    const bool valid =
        row < valid_rows && unit * Element::kOfUnit < kDim && references[row] != infinity();
    cp_async_16_or_zero(to + Layout::offset(row, unit), from + row * stride_bytes + unit * 16,
                        valid);
  }
}

// The same where rows and references are in shared memory. The CTA calls it; tiles with
// such rows are rare, and others cost it a look at the references.
template <int kRows, int kDim, int kThreads>
ATT_FN void clear_dead_rows(unsigned tile, unsigned references) {
  if constexpr (!spec::kHasMask && !spec::kHasScore) return;
  using Layout = typename Element::template Rows<padded_dim(kDim)>;
  const auto is_dead = [&](int row) {
    return __builtin_bit_cast(float, load_shared_4(references + 4 * row)) == infinity();
  };
  bool any = false;
#pragma unroll
  for (int first = 0; first < kRows; first += 32) {
    any |= is_dead(kRows % 32 == 0 ? first + lane_index() : lane_index() % kRows);
  }
  if (ballot(any) == 0) return;
  const unsigned zeros[4] = {};
#pragma unroll 1
  for (int i = thread_index(); i < kRows * Layout::kUnits; i += kThreads) {
    const int row = i / Layout::kUnits;
    if (is_dead(row)) store_shared_16(tile + Layout::offset(row, i % Layout::kUnits), zeros);
  }
  sync_threads();
}

}  // namespace att
