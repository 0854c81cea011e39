// How elements of the dtype lie in 16-byte units, and units in tiles of shared memory. Those of 2
// bytes are here; elements_fp32.cuh, which kernels of fp32 include first, has those of 4.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

ATT_FN float bf16_low(unsigned packed) { return __builtin_bit_cast(float, packed << 16); }

template <DType kType>
struct Elements {
  static constexpr int kBytes = 2;
  static constexpr int kOfUnit = 8;
  // A tile of rows of kColumns elements, kColumns a multiple of 16.
  template <int kColumns>
  using Rows = RowLayout<kColumns>;

  // Puts two elements of a lane's accumulators into row `row` of a tile: those of the n-th block of
  // 8 columns.
  template <int kColumns>
  static ATT_MEMBER void store_pair(unsigned tile, int row, int n, int lane, float low,
                                    float high) {
    store_shared_4(tile + Rows<kColumns>::offset(row, n) + lane % 4 * 4, pack_2<kType>(low, high));
  }

  // Eight elements that follow one another, 16-byte aligned.
  static constexpr int kWordsOfEight = 4;
  // sum + a b, of the elements of a word of O and one of dO.
  static ATT_MEMBER float add_products(float sum, unsigned a, unsigned b) {
    sum += low_half(a) * low_half(b);
    sum += low_half(a >> 16) * low_half(b >> 16);
    return sum;
  }

 private:
  static ATT_MEMBER float low_half(unsigned packed) {
    if constexpr (kType == DType::bf16) return bf16_low(packed);
    float out;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
        : "=f"(out)
        : "r"(packed));
    return out;
  }
};

using Element = Elements<spec::kDType>;

}  // namespace att
