// dK and dV of the sm80 family by warps with 32 keys each, where registers have room for their
// gradients: of what a warp reads of Q and dO it makes twice as much as with 16.
#pragma once

#include "templates/tile/sm80_shared_keys.cuh"

namespace att {

template <DType kType>
struct WideKeys {
  static constexpr int kBlocks = 2;  // of 16 keys
  using Elements = ColumnElements<kStep>;
  using Factor = typename Operands<kType>::template Factor<kStep>;

  const int k0, first_key;  // of the CTA; of the warp's among its keys
  const unsigned rows;
  const QuerySums<true, kType> query_sums;
  float d_k[kBlocks][kDimQk / 8][4], d_v[kBlocks][kDimV / 8][4];

  ATT_MEMBER WideKeys(const BackwardParams&, int first, unsigned shared)
      : k0(first),
        first_key(warp_index() * 32),
        rows(shared),
        query_sums(shared + kScoresOffset, shared) {
    clear(d_k);
    clear(d_v);
  }

  // As OwnKeys::add() of sm80_own_keys.cuh.
  ATT_MEMBER void add(const Context& c, int query, bool full, unsigned at, float* sums,
                      long long row) {
    const int lane = lane_index();
    const unsigned references = at + kStatisticsOffset + lane % 4 * 8;
    const auto elements = [&](int m) {
      return Elements{k0 + first_key + 16 * m + lane / 4, query + lane % 4 * 2, references,
                      references + kStep * 4};
    };
    float s[kBlocks][kStep / 8][4], d[kBlocks][kStep / 8][4];
    unsigned keep[kBlocks][Elements::kWords];
    Factor factors[kBlocks];
    WarpRows<kDimQk>(rows, first_key).multiply(s, at);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      elements(m).drop(c, keep[m]);
      elements(m).probabilities(
          c, s[m], full, keep[m],
          [&](int n, int half, float low, float high) { factors[m].set(n, half, low, high); });
    }
    add_rows<kDimV>(d_v, factors, at + kOtherStepOffset);
    WarpRows<kDimV>(rows + kOtherRowsOffset, first_key).multiply(d, at + kOtherStepOffset);
    NothingLearned learned;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      elements(m).gradients(
          c, s[m], d[m], keep[m],
          [&](int n, int half, float low, float high) { factors[m].set(n, half, low, high); },
          learned);
      query_sums.put(factors[m], first_key + 16 * m);
    }
    add_rows<kDimQk>(d_k, factors, at);
    sync_threads();
    query_sums.add(sums, row);
  }

  ATT_MEMBER void end(const Context&) const {}
  ATT_MEMBER void store(const BackwardParams& p, const Sequence& own, int h_kv, int,
                        float d_v_scale, unsigned shared) const {
    const unsigned of_warp =
        shared + warp_index() * 16 * Rows<(kDimQk > kDimV ? kDimQk : kDimV)>::kRowBytes;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int row = k0 + first_key + 16 * m;
      store_gradient<spec::kHeadDimV, kDimV>(d_v[m], d_v_scale,
                                             {p.d_v, p.d_v_stride, own.slice, own.kv_first, h_kv},
                                             0, row, keys_of(p, own), of_warp);
      store_gradient<spec::kHeadDimQk, kDimQk>(d_k[m], softmax_scale(p),
                                               {p.d_k, p.d_k_stride, own.slice, own.kv_first, h_kv},
                                               0, row, keys_of(p, own), of_warp);
    }
  }

 private:
  // sum += the factors times the stage's rows at `step`.
  template <int kDim>
  ATT_MEMBER void add_rows(float (&sum)[kBlocks][kDim / 8][4], const Factor (&factors)[kBlocks],
                           unsigned step) const {
    using Layout = RowLayout<kDim>;
    const int lane = lane_index();
    const unsigned from = step + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m][i] = factors[m].words[j][i];
      }
      product_pv<kBlocks, kDim>(sum, a, from + j * 16 * Layout::kRowBytes);
    }
  }
};

}  // namespace att
