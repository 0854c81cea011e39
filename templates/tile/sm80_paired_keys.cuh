// dK and dV of the sm80 family by pairs of warps. A pair has 32 keys. For S and dP its warps share
// out the queries of a stage, for dK and dV the columns, and P and dS go through shared memory in
// between: of what a warp reads there it makes twice as much as with 16 keys of its own.
#pragma once

#include "templates/tile/sm80_query_sums.cuh"

namespace att {

// Nothing is learned beside.
struct NothingLearned {
  static constexpr bool kLearns = false;
};

template <DType kType>
struct PairedKeys {
  static constexpr int kBlocks = 2;              // of 16 keys
  static constexpr int kOwnQueries = kStep / 2;  // of a stage
  using Scores = RowLayout<kStep>;               // P^T and dS^T: a row is a key
  using Elements = ColumnElements<kOwnQueries>;
  // Half a row is a step of its layout.
  static_assert(!plan::kPairsOfWarps || (kDimQk % 64 == 0 && kDimV % 64 == 0));

  const int k0, first_key, side;  // of the CTA; of the pair's among its keys; which of two warps
  const unsigned rows, p_scores, d_scores;
  const QuerySums<true, kType> query_sums;
  float d_k[kBlocks][kDimQk / 16][4], d_v[kBlocks][kDimV / 16][4];

  ATT_MEMBER PairedKeys(const BackwardParams&, int first, unsigned shared)
      : k0(first),
        first_key(warp_index() / 2 * 32),
        side(warp_index() % 2),
        rows(shared),
        p_scores(shared + kScoresOffset + 2 * kRows * kStep),
        d_scores(shared + kScoresOffset),
        query_sums(d_scores, shared) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      clear(d_k[m]);
      clear(d_v[m]);
    }
  }

  // As OwnKeys::add() of sm80_backward.cuh.
  ATT_MEMBER void add(const Context& c, int query, bool full, unsigned at, float* sums,
                      long long row) {
    const int lane = lane_index();
    const int own_query = query + side * kOwnQueries + lane % 4 * 2;
    const unsigned references = at + kStatisticsOffset + side * kOwnQueries * 4 + lane % 4 * 8;
    const auto elements = [&](int m) {
      return Elements{k0 + first_key + 16 * m + lane / 4, own_query, references,
                      references + kStep * 4};
    };
    float s[kBlocks][kOwnQueries / 8][4], d[kBlocks][kOwnQueries / 8][4];
    unsigned keep[kBlocks][Elements::kWords];
    multiply<kDimQk>(s, rows, at);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      elements(m).drop(c, keep[m]);
      elements(m).probabilities(
          c, s[m], full, keep[m],
          [&](int n, int half, float low, float high) { put(p_scores, m, n, half, low, high); });
    }
    multiply<kDimV>(d, rows + kOtherRowsOffset, at + kOtherStepOffset);
    NothingLearned learned;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      elements(m).gradients(
          c, s[m], d[m], keep[m],
          [&](int n, int half, float low, float high) { put(d_scores, m, n, half, low, high); },
          learned);
    }
    sync_threads();
    add_rows<kDimV>(d_v, p_scores, at + kOtherStepOffset);
    add_rows<kDimQk>(d_k, d_scores, at);
    query_sums.add(sums, row);
  }

  ATT_MEMBER void end(const Context&) const {}
  ATT_MEMBER void store(const BackwardParams& p, const Sequence& own, int h_kv, int,
                        float d_v_scale, unsigned shared) const {
    const unsigned of_warp =
        shared + warp_index() * 16 * Rows<(kDimQk > kDimV ? kDimQk : kDimV) / 2>::kRowBytes;
    store_half<spec::kHeadDimV, kDimV>(d_v, d_v_scale,
                                       {p.d_v, p.d_v_stride, own.slice, own.kv_first, h_kv},
                                       keys_of(p, own), of_warp);
    store_half<spec::kHeadDimQk, kDimQk>(d_k, softmax_scale(p),
                                         {p.d_k, p.d_k_stride, own.slice, own.kv_first, h_kv},
                                         keys_of(p, own), of_warp);
  }

 private:
  // The CTA's rows at `of_cta` times the own queries' at `step`, transposed.
  template <int kDim>
  ATT_MEMBER void multiply(float (&s)[kBlocks][kOwnQueries / 8][4], unsigned of_cta,
                           unsigned step) const {
    using Layout = RowLayout<kDim>;
    const int lane = lane_index();
    const unsigned from =
        opaque(of_cta + Layout::offset(first_key + down_row(lane), down_unit(lane)));
    product_qk<kBlocks, kOwnQueries, kDim, 2>(
        s,
        [&](unsigned(&a)[4], int m, int k) {
          ldmatrix_x4(a, Layout::step(from, 2 * k) + m * 16 * Layout::kRowBytes);
        },
        step + side * kOwnQueries * Layout::kRowBytes +
            Layout::offset(across_row(lane), across_unit(lane)));
  }

  // Where a pair of elements of block m goes: of column block n, of rows `half`.
  ATT_MEMBER void put(unsigned scores, int m, int n, int half, float low, float high) const {
    const int lane = lane_index();
    const int key = first_key + 16 * m + lane / 4 + 8 * half;
    store_shared_4(scores + Scores::offset(key, side * (kOwnQueries / 8) + n) + lane % 4 * 4,
                   pack_2<kType>(low, high));
  }

  // sum += P^T or dS^T of the pair's keys times the own columns of the stage's rows.
  template <int kDim>
  ATT_MEMBER void add_rows(float (&sum)[kBlocks][kDim / 16][4], unsigned scores,
                           unsigned step) const {
    using Layout = RowLayout<kDim>;
    const int lane = lane_index();
    const unsigned of_scores = scores + Scores::offset(first_key + down_row(lane), down_unit(lane));
    const unsigned of_rows =
        Layout::step(step + Layout::offset(down_row(lane), down_unit(lane)), side * (kDim / 16));
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        ldmatrix_x4(a[m], Scores::step(of_scores, 2 * j) + m * 16 * Scores::kRowBytes);
#pragma unroll
      for (int n = 0; n < kDim / 32; ++n) {
        unsigned b[4];
        ldmatrix_x4_trans(b, Layout::step(of_rows, 2 * n) + j * 16 * Layout::kRowBytes);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          mma_m16n8k16<kType>(sum[m][2 * n], a[m], b[0], b[1]);
          mma_m16n8k16<kType>(sum[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // `shared` is the warp's.
  template <int kColumns, int kDim>
  ATT_MEMBER void store_half(const float (&sum)[kBlocks][kDim / 16][4], float scale,
                             const Destination& to, int length, unsigned shared) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const int row = k0 + first_key + 16 * m;
      if (side == 0) {
        store_gradient<kColumns, 0, kDim / 2>(sum[m], scale, to, row, length, shared);
      } else {
        store_gradient<kColumns, kDim / 2, kDim / 2>(sum[m], scale, to, row, length, shared);
      }
    }
  }
};

}  // namespace att
