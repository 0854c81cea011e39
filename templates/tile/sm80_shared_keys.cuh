// dK and dV of the sm80 family by warps that share 32 keys, two or four of them. For S and dP they
// share out the queries of a stage, four the keys, too; for dK and dV the columns; and P and dS go
// through shared memory in between: of what a warp reads there it makes twice as much as with 16
// keys of its own, and its gradients take a half or a fourth of the registers that 32 alone would.
#pragma once

#include "templates/tile/sm80_shared_columns.cuh"

namespace att {

template <DType kType>
struct SharedKeys : SharedColumns<kType> {
  using Base = SharedColumns<kType>;
  using Base::d_k, Base::d_v, Base::d_scores, Base::p_scores, Base::rows, Base::score_key,
      Base::side;
  static constexpr int kScoreBlocks = 4 / Base::kSharers;  // of 16 keys whose scores a warp has
  static constexpr int kOwnQueries = Base::kOwnQueries;
  using Elements = typename Base::Elements;

  ATT_MEMBER SharedKeys(const BackwardParams&, int first, unsigned shared)
      : Base(first, warp_index() % Base::kSharers / 2 * 16, shared) {}

  // As OwnKeys::add() of sm80_own_keys.cuh.
  ATT_MEMBER void add(const Context& c, int query, bool full, unsigned at, float* sums,
                      long long row) {
    const int lane = lane_index();
    const int first = side * kOwnQueries;  // of the stage's queries
    const int own_query = query + first + lane % 4 * 2;
    const unsigned references = at + kStatisticsOffset + first * 4 + lane % 4 * 8;
    const auto elements = [&](int m) {
      return Elements{Base::k0 + score_key + 16 * m + lane / 4, own_query, references,
                      references + kStep * 4};
    };
    float s[kScoreBlocks][kOwnQueries / 8][4], d[kScoreBlocks][kOwnQueries / 8][4];
    unsigned keep[kScoreBlocks][Elements::kWords];
    WarpRows<kDimQk>(rows, score_key)
        .template multiply<Base::kScoreSteps>(s, at + first * Rows<kDimQk>::kRowBytes);
#pragma unroll
    for (int m = 0; m < kScoreBlocks; ++m) {
      elements(m).drop(c, keep[m]);
      elements(m).probabilities(c, s[m], full, keep[m],
                                [&](int n, int half, float low, float high) {
                                  Base::put(p_scores, m, n, half, low, high);
                                });
    }
    WarpRows<kDimV>(rows + kOtherRowsOffset, score_key)
        .template multiply<Base::kScoreSteps>(
            d, at + kOtherStepOffset + first * Rows<kDimV>::kRowBytes);
    NothingLearned learned;
#pragma unroll
    for (int m = 0; m < kScoreBlocks; ++m) {
      elements(m).gradients(
          c, s[m], d[m], keep[m],
          [&](int n, int half, float low, float high) {
            Base::put(d_scores, m, n, half, low, high);
          },
          learned);
    }
    sync_threads();
    Base::template add_rows<kDimV>(d_v, p_scores, at + kOtherStepOffset);
    Base::template add_rows<kDimQk>(d_k, d_scores, at);
    Base::query_sums.add(sums, row);
  }
};

}  // namespace att
