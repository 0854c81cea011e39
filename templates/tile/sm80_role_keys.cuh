// dK and dV of the sm80 family by eight warps of which four make S and P and four dP and dS, where
// rows are long: S and dP of 32 keys and half of a stage's queries read a third less of shared
// memory than both of half as many keys. A tile's slopes go from the one warp to the other as they
// lie in registers; the rest is as in sm80_shared_columns.cuh.
#pragma once

#include "templates/tile/sm80_shared_columns.cuh"

namespace att {

template <DType kType>
struct RoleKeys : SharedColumns<kType> {
  using Base = SharedColumns<kType>;
  using Base::d_k, Base::d_v, Base::d_scores, Base::p_scores, Base::rows, Base::score_key,
      Base::side;
  static constexpr int kScoreBlocks = 2;  // of 16 keys whose scores a warp has
  static constexpr int kOwnQueries = Base::kOwnQueries;
  static_assert(!plan::kHasRoles || (plan::kWarps == 8 && plan::kSharers == 4));
  using Elements = typename Base::Elements;
  using Tile = float[kScoreBlocks][kOwnQueries / 8][4];

  const bool makes_p;
  const unsigned slopes;  // the warp pair's, of this lane

  ATT_MEMBER RoleKeys(const BackwardParams&, int first, unsigned shared)
      : Base(first, warp_index() % 4 / 2 * 32 - warp_index() / 4 * 32, shared),
        makes_p(warp_index() >= 4),
        slopes(shared + kSlopesOffset + warp_index() % 4 * (32 * sizeof(Tile)) +
               lane_index() * 16) {}

  // As SharedKeys::add().
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
    Tile x;
    unsigned keep[kScoreBlocks][Elements::kWords];
#pragma unroll
    for (int m = 0; m < kScoreBlocks; ++m) elements(m).drop(c, keep[m]);
    if (makes_p) {
      WarpRows<kDimQk>(rows, score_key)
          .template multiply<Base::kScoreSteps>(x, at + first * Rows<kDimQk>::kRowBytes);
#pragma unroll
      for (int m = 0; m < kScoreBlocks; ++m) {
        elements(m).probabilities(c, x[m], full, keep[m],
                                  [&](int n, int half, float low, float high) {
                                    Base::put(p_scores, m, n, half, low, high);
                                  });
#pragma unroll
        for (int n = 0; n < kOwnQueries / 8; ++n) {
          store_shared_floats(slopes + (m * kOwnQueries / 8 + n) * 512, x[m][n]);
        }
      }
      sync_threads();
    } else {
      WarpRows<kDimV>(rows + kOtherRowsOffset, score_key)
          .template multiply<Base::kScoreSteps>(
              x, at + kOtherStepOffset + first * Rows<kDimV>::kRowBytes);
      sync_threads();
      NothingLearned learned;
#pragma unroll
      for (int m = 0; m < kScoreBlocks; ++m) {
        float s[kOwnQueries / 8][4];
#pragma unroll
        for (int n = 0; n < kOwnQueries / 8; ++n) {
          load_shared_floats(slopes + (m * kOwnQueries / 8 + n) * 512, s[n]);
        }
        elements(m).gradients(
            c, s, x[m], keep[m],
            [&](int n, int half, float low, float high) {
              Base::put(d_scores, m, n, half, low, high);
            },
            learned);
      }
    }
    Base::template add_rows<kDimV>(d_v, p_scores, at + kOtherStepOffset);
    sync_threads();
    Base::template add_rows<kDimQk>(d_k, d_scores, at);
    Base::query_sums.add(sums, row);
  }
};

}  // namespace att
