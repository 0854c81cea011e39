// What the two matrix products of a warp are made of, and how accumulators become operands. Those
// of 2-byte elements are here; operands_tf32.cuh, which kernels of fp32 include first, has those of
// tf32.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/ldmatrix.cuh"
#include "templates/ptx/mma.cuh"
#include "templates/tile/dropout_fragment.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

template <DType kType>
struct Operands {
  static constexpr int kDepth = 16;         // columns of a step of a product with rows
  static constexpr int kLongestChunk = 64;  // keys whose scores registers have room for
  static constexpr int kStepsAtOnce = 4;    // whose fragments they have room for

  // s = `rows` times the rows of a tile, transposed: product_qk of products.cuh. `address` is this
  // lane's ldmatrix address of the tile's first 16 rows.
  template <int kBlocks, int kKeys, int kDim, int kUnroll, typename Fragment>
  static ATT_MEMBER void multiply(float (&s)[kBlocks][kKeys / 8][4], const Fragment& rows,
                                  unsigned address) {
    product_qk<kBlocks, kKeys, kDim, kUnroll>(s, rows, address);
  }

  // Its offset(down_row(lane), down_unit(lane)) is where a lane begins to read a tile whose rows
  // are summed over.
  template <int kDim>
  using Summed = RowLayout<kDim>;

  // o += dropout(P) V for kBlocks x 16 queries from q0 on and kKeys keys from k0 on: this lane
  // reads those from the i-th on, i a multiple of 16, at `values(i)`. kFinite: an O that is not
  // finite is worked out again, so that what exactly it is does not matter.
  template <bool kFinite, int kBlocks, int kKeys, int kDim, typename Address>
  static ATT_MEMBER void add_values(float (&o)[kBlocks][kDim / 8][4],
                                    const float (&s)[kBlocks][kKeys / 8][4], const Context& c,
                                    int q0, int k0, const Address& values) {
    constexpr int kGroup = spec::kHasDropout ? 2 : 1;  // 16 keys each
#pragma unroll
    for (int first = 0; first < kKeys / 16; first += kGroup) {
      unsigned p[kBlocks][kGroup][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
          const float(&left)[4] = s[m][2 * (first + j)];
          const float(&right)[4] = s[m][2 * (first + j) + 1];
          p[m][j][0] = pack_2<kType>(left[0], left[1]);
          p[m][j][1] = pack_2<kType>(left[2], left[3]);
          p[m][j][2] = pack_2<kType>(right[0], right[1]);
          p[m][j][3] = pack_2<kType>(right[2], right[3]);
        }
      }
      if constexpr (spec::kHasDropout) drop_elements(p, c, q0, k0 + 16 * first);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        unsigned a[kBlocks][4];
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = p[m][j][i];
        }
        product_pv<kBlocks, kDim>(o, a, values(16 * (first + j)));
      }
    }
  }

  // P or dS of 16 rows and kStep columns, from a lane's accumulators: the pair of elements `half`
  // of the n-th block of 8 columns.
  template <int kStep>
  struct Factor {
    unsigned words[kStep / 16][4];
    ATT_MEMBER void set(int n, int half, float low, float high) {
      words[n / 2][n % 2 * 2 + half] = pack_2<kType>(low, high);
    }
  };

  // sum += factor times columns [kFirst, kFirst + kCount) of the kStep rows of kDim columns at
  // `tile`.
  template <int kDim, int kFirst, int kCount, int kStep>
  static ATT_MEMBER void add_rows(float (&sum)[kCount / 8][4], const Factor<kStep>& factor,
                                  unsigned tile) {
    using Layout = RowLayout<kDim>;
    const int lane = lane_index();
    const unsigned from = tile + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      const unsigned row = from + j * 16 * Layout::kRowBytes;
#pragma unroll
      for (int n = 0; n < kCount / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4_trans(b, Layout::step(row, kFirst / 8 + 2 * n));
        mma_m16n8k16<kType>(sum[2 * n], factor.words[j], b[0], b[1]);
        mma_m16n8k16<kType>(sum[2 * n + 1], factor.words[j], b[2], b[3]);
      }
    }
  }
};

using Operand = Operands<spec::kDType>;

}  // namespace att
