// dK and dV of the sm80 family by warps that share 32 keys, two or four of them. For S and dP they
// share out the queries of a stage, four the keys, too; for dK and dV the columns; and P and dS go
// through shared memory in between: of what a warp reads there it makes twice as much as with 16
// keys of its own, and its gradients take a half or a fourth of the registers that 32 alone would.
#pragma once

#include "templates/tile/backward_scores.cuh"
#include "templates/tile/sm80_query_sums.cuh"

namespace att {

// Nothing is learned beside.
struct NothingLearned {
  static constexpr bool kLearns = false;
};

template <DType kType>
struct SharedKeys {
  static constexpr int kSharers = plan::kSharers;
  static constexpr int kBlocks = 2;                  // of 16 keys whose gradients a warp has,
  static constexpr int kScoreBlocks = 4 / kSharers;  // and whose scores,
  static constexpr int kOwnQueries = kStep / 2;      // of so many queries of a stage
  using Scores = RowLayout<kStep>;                   // P^T and dS^T: a row is a key
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

  ATT_MEMBER SharedKeys(const BackwardParams&, int first, unsigned shared)
      : k0(first),
        first_key(warp_index() / kSharers * 32),
        score_key(first_key + warp_index() % kSharers / 2 * 16),
        side(warp_index() % 2),
        sharer(warp_index() % kSharers),
        rows(shared),
        p_scores(shared + kScoresOffset + 2 * kRows * kStep),
        d_scores(shared + kScoresOffset),
        query_sums(d_scores, shared) {
    clear(d_k);
    clear(d_v);
  }

  // As OwnKeys::add() of sm80_own_keys.cuh.
  ATT_MEMBER void add(const Context& c, int query, bool full, unsigned at, float* sums,
                      long long row) {
    const int lane = lane_index();
    const int first = side * kOwnQueries;  // of the stage's queries
    const int own_query = query + first + lane % 4 * 2;
    const unsigned references = at + kStatisticsOffset + first * 4 + lane % 4 * 8;
    const auto elements = [&](int m) {
      return Elements{k0 + score_key + 16 * m + lane / 4, own_query, references,
                      references + kStep * 4};
    };
    float s[kScoreBlocks][kOwnQueries / 8][4], d[kScoreBlocks][kOwnQueries / 8][4];
    unsigned keep[kScoreBlocks][Elements::kWords];
    WarpRows<kDimQk>(rows, score_key).multiply(s, at + first * Rows<kDimQk>::kRowBytes);
#pragma unroll
    for (int m = 0; m < kScoreBlocks; ++m) {
      elements(m).drop(c, keep[m]);
      elements(m).probabilities(
          c, s[m], full, keep[m],
          [&](int n, int half, float low, float high) { put(p_scores, m, n, half, low, high); });
    }
    WarpRows<kDimV>(rows + kOtherRowsOffset, score_key)
        .multiply(d, at + kOtherStepOffset + first * Rows<kDimV>::kRowBytes);
    NothingLearned learned;
#pragma unroll
    for (int m = 0; m < kScoreBlocks; ++m) {
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
        shared + warp_index() * 16 * Rows<kOwn<(kDimQk > kDimV ? kDimQk : kDimV)>>::kRowBytes;
    store_own<spec::kHeadDimV, kDimV>(d_v, d_v_scale,
                                      {p.d_v, p.d_v_stride, own.slice, own.kv_first, h_kv},
                                      keys_of(p, own), of_warp);
    store_own<spec::kHeadDimQk, kDimQk>(d_k, softmax_scale(p),
                                        {p.d_k, p.d_k_stride, own.slice, own.kv_first, h_kv},
                                        keys_of(p, own), of_warp);
  }

 private:
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
