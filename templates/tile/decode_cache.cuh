// What a warp of the decode family does with K and V as the cache holds them: in the dtype of Q,
// here; decode_cache_fp8.cuh, which kernels of a cache of fp8 include first, has the other.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/smem_layout.cuh"

namespace att {

template <DType kStored>
struct DecodeCache {
  static constexpr int kBytes = 2;       // of an element
  static constexpr int kScaleBytes = 0;  // of a step's scales
  static ATT_MEMBER constexpr int padded(int dim) { return padded_dim(dim); }

  template <int kDim>
  using Rows = RowLayout<kDim>;

  // A row's elements and strides, as copies count them: in pairs of bytes.
  static ATT_MEMBER constexpr int copied(int dim) { return dim; }
  static ATT_MEMBER const Strides& copied(const Strides& stride) { return stride; }
  // Starts the copy of a step's scales; lane i has key i's slice of the cache, negative: nowhere.
  template <typename Params>
  static ATT_MEMBER void load_scales(const Params&, unsigned, int, int) {}

  // A operands.
  template <int kBlocks, int kDim>
  struct Queries {
    unsigned words[kBlocks][kDim / 16][4];

    ATT_MEMBER void keep(unsigned shared) {
      using Layout = RowLayout<kDim>;
      const int lane = lane_index();
      const unsigned address = shared + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
          ldmatrix_x4(words[m][k], Layout::step(address, 2 * k) + m * 16 * Layout::kRowBytes);
        }
      }
    }
  };

  // s = Q K^T for kKeys keys at `k`, whose scales are at `scales`.
  template <int kBlocks, int kKeys, int kDim>
  static ATT_MEMBER void multiply(float (&s)[kBlocks][kKeys / 8][4],
                                  const Queries<kBlocks, kDim>& queries, unsigned k, unsigned,
                                  int lane) {
    const auto fragment = [&](unsigned(&a)[4], int m, int step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = queries.words[m][step][i];
    };
    product_qk<kBlocks, kKeys, kDim, kDim / 16>(
        s, fragment, k + RowLayout<kDim>::offset(across_row(lane), across_unit(lane)));
  }

  // p times the scales of V, for kKeys keys.
  template <int kBlocks, int kKeys>
  static ATT_MEMBER void scale_weights(float (&)[kBlocks][kKeys / 8][4], unsigned, int) {}

  // P as an operand.
  static constexpr DType kWeights = kStored;

  // o += P V of 16 keys, of which this lane reads at `v`.
  template <int kBlocks, int kDim>
  static ATT_MEMBER void add_values(float (&o)[kBlocks][kDim / 8][4],
                                    const unsigned (&p)[kBlocks][4], unsigned v) {
    product_pv<kBlocks, kDim>(o, p, v);
  }

  // Which columns of O a lane's elements o[m][n][0] and [1] are: first_column() + column(n, 0 or
  // 1).
  static ATT_MEMBER int first_column(int lane) { return lane % 4 * 2; }
  static ATT_MEMBER constexpr int column(int n, int e) { return 8 * n + e; }
};
using Cache = DecodeCache<spec::kKvDType>;

}  // namespace att
