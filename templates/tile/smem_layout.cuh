// How a tile of rows lies in shared memory: dense rows whose 16-byte units are permuted, so that
// the eight rows an ldmatrix phase reads at one column fall into eight different groups of banks.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Head dims are padded to whole mma steps.
ATT_FN constexpr int padded_dim(int dim) { return (dim + 15) / 16 * 16; }

// Rows of kColumns 2-byte elements, kColumns a multiple of 16; a tile starts at a multiple of 128
// bytes. Eight rows span 8 * kUnits units; where kUnits is a multiple of 8 all of them start in
// the same bank group and the unit is XORed with the row; where it is 4 (2) modulo 8 every second
// (fourth) row does, and fewer bits suffice.
template <int kColumns>
struct RowLayout {
  static constexpr int kRowBytes = 2 * kColumns;
  static constexpr int kUnits = kRowBytes / 16;
  static constexpr int kMask = kUnits % 8 == 0 ? 7 : kUnits % 4 == 0 ? 3 : 1;
  static constexpr int kShift = kUnits % 8 == 0 ? 0 : kUnits % 4 == 0 ? 1 : 2;

  // Byte offset of 16-byte unit `unit` of row `row`.
  static ATT_MEMBER int offset(int row, int unit) {
    return row * kRowBytes + ((unit ^ ((row >> kShift) & kMask)) << 4);
  }
  // From the address of unit u (0 or 1) of a row to that of unit u + step, step even.
  static ATT_MEMBER unsigned step(unsigned address, int step) {
    return (address ^ ((step & kMask) << 4)) + ((step & ~kMask) << 4);
  }
};

}  // namespace att
