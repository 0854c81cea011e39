// dK and dV of the sm80 family's warps that share 32 keys, two or four of them: P and dS of the
// CTA's keys go through shared memory, and each warp makes its part of the columns.
#pragma once

#include "templates/tile/backward_scores.cuh"
#include "templates/tile/sm80_query_sums.cuh"

namespace att {

// Nothing is learned beside.
struct NothingLearned {
  static constexpr bool kLearns = false;
};

template <DType kType>
struct SharedColumns {
  static constexpr int kSharers = plan::kSharers;
  static constexpr int kBlocks = 2;      // of 16 keys whose gradients a warp has
  static constexpr int kScoreSteps = 8;  // of S and dP in a loop body; more take too many registers
  // Queries of a stage whose scores a warp has.
  static constexpr int kOwnQueries = kStep / 2;
  using Scores = RowLayout<kStep>;  // P^T and dS^T: a row is a key
  using Elements = ColumnElements<kOwnQueries>;
  template <int kDim>
  static constexpr int kOwn = kDim / kSharers;  // columns of a gradient
  template <int kDim>
  using Gradient = float[kBlocks][kOwn<kDim> / 8][4];

  const int k0;            // of the CTA
  const int first_key;     // of the sharers', among the CTA's keys;
  const int score_key;     // of those whose scores the warp has
  const int side, sharer;  // which half of the queries, which part of the columns
  const unsigned rows, p_scores, d_scores;
  const QuerySums<true, kType> query_sums;
  Gradient<kDimQk> d_k;
  Gradient<kDimV> d_v;

  // `own_score_key`: from the sharers' first key on.
  ATT_MEMBER SharedColumns(int first, int own_score_key, unsigned shared)
      : k0(first),
        first_key(warp_index() / kSharers * 32),
        score_key(first_key + own_score_key),
        side(warp_index() % 2),
        sharer(warp_index() % kSharers),
        rows(shared),
        p_scores(shared + kScoresOffset + 2 * kRows * kStep),
        d_scores(shared + kScoresOffset),
        query_sums(d_scores, shared) {
    clear(d_k);
    clear(d_v);
  }

  ATT_MEMBER void end(const Context&) const {}
  ATT_MEMBER void store(const BackwardParams& p, const Sequence& own, int h_kv, int,
                        float d_v_scale, unsigned shared) const {
    const unsigned of_warp =
        shared + warp_index() * 16 * Rows<kOwn<(kDimQk > kDimV ? kDimQk : kDimV)>>::kRowBytes;
    store_own<spec::kHeadDimV, kDimV>(d_v, d_v_scale,
                                      {p.d_v, p.d_v_stride, own.slice, own.kv_first, h_kv},
                                      keys_of(p, own), of_warp);
    store_own<spec::kHeadDimQk, kDimQk>(d_k, softmax_scale(p),
                                        {p.d_k, p.d_k_stride, own.slice, own.kv_first, h_kv},
                                        keys_of(p, own), of_warp);
  }

 protected:
  // Where a pair of elements of block m goes: of column block n, of rows `half`.
  ATT_MEMBER void put(unsigned scores, int m, int n, int half, float low, float high) const {
    const int lane = lane_index();
    const int key = score_key + 16 * m + lane / 4 + 8 * half;
    store_shared_4(scores + Scores::offset(key, side * (kOwnQueries / 8) + n) + lane % 4 * 4,
                   pack_2<kType>(low, high));
  }

  // sum += P^T or dS^T of the shared keys times the own columns of the stage's rows.
  template <int kDim>
  ATT_MEMBER void add_rows(Gradient<kDim>& sum, unsigned scores, unsigned step) const {
    using Layout = RowLayout<kDim>;
    const int lane = lane_index();
    const unsigned of_scores = scores + Scores::offset(first_key + down_row(lane), down_unit(lane));
    const unsigned of_rows = Layout::step(step + Layout::offset(down_row(lane), down_unit(lane)),
                                          sharer * (kOwn<kDim> / 8));
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        ldmatrix_x4(a[m], Scores::step(of_scores, 2 * j) + m * 16 * Scores::kRowBytes);
#pragma unroll
      for (int n = 0; n < kOwn<kDim> / 16; ++n) {
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

 private:
  // `shared` is the warp's.
  template <int kColumns, int kDim>
  ATT_MEMBER void store_own(const Gradient<kDim>& sum, float scale, const Destination& to,
                            int length, unsigned shared) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      store_gradient<kColumns, kOwn<kDim>>(sum[m], scale, to, sharer * kOwn<kDim>,
                                           k0 + first_key + 16 * m, length, shared);
    }
  }
};

}  // namespace att
