// Elements of fp32: four in 16 bytes.
#pragma once

#include "templates/ptx/mma_tf32.cuh"
#include "templates/tile/elements.cuh"

namespace att {

// Rows of kColumns fp32, kColumns a multiple of 4; a tile starts at a multiple of 128 bytes. A row
// takes whole groups of 128 bytes and its 16-byte units are XORed with the row, so that neither
// the eight rows of an ldmatrix phase nor the 8 columns of every second row of eight, which
// operands_tf32.cuh reads at once, meet in a bank.
template <int kColumns>
struct WideRowLayout {
  static constexpr int kRowBytes = (4 * kColumns + 127) / 128 * 128;
  static constexpr int kUnits = kColumns / 4;  // that hold elements

  // Byte offset of 16-byte unit `unit` of row `row`.
  static ATT_MEMBER int offset(int row, int unit) {
    return row * kRowBytes + ((unit ^ (row & 7)) << 4);
  }
  // From the address of unit u (0 or 1) of a row to that of unit u + step, step even.
  static ATT_MEMBER unsigned step(unsigned address, int step) {
    return (address ^ ((step & 7) << 4)) + ((step & ~7) << 4);
  }
};

template <>
struct Elements<DType::f32> {
  static constexpr int kBytes = 4;
  static constexpr int kOfUnit = 4;
  template <int kColumns>
  using Rows = WideRowLayout<kColumns>;

  template <int kColumns>
  static ATT_MEMBER void store_pair(unsigned tile, int row, int n, int lane, float low,
                                    float high) {
    store_shared_8(tile + Rows<kColumns>::offset(row, 2 * n + lane % 4 / 2) + lane % 2 * 8, low,
                   high);
  }

  static constexpr int kWordsOfEight = 8;
  // b as the backward pass's products have it: D is taken from dP, whose sum it is, and what dO's
  // rounding changed in one of them alone would be left in all of a row's dS.
  static ATT_MEMBER float add_products(float sum, unsigned a, unsigned b) {
    if constexpr (plan::kTf32Products == 1) b = round_to_tf32(b);
    return sum + __builtin_bit_cast(float, a) * __builtin_bit_cast(float, b);
  }
};

}  // namespace att
