// dK and dV of the sm80 family by warps with 16 keys each, or a part of their columns.
#pragma once

#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/sm80_query_sums.cuh"

namespace att {

// Columns of them that one item makes: all, or half where registers have no room for more.
ATT_FN constexpr int part_columns(int columns) {
  return plan::kColumnParts == 1 ? columns : (columns / 16 + 1) / 2 * 16;
}
constexpr int kPartQk = part_columns(kDimQk);
constexpr int kPartV = part_columns(kDimV);

// What a warp makes of its 16 keys, of the columns that are part kPart.
template <int kPart>
struct OwnKeys {
  // The last part may be shorter.
  static constexpr int kFirstQk = kPart * kPartQk, kFirstV = kPart * kPartV;
  static constexpr int kCountQk = kDimQk - kFirstQk < kPartQk ? kDimQk - kFirstQk : kPartQk;
  static constexpr int kCountV = kDimV - kFirstV < kPartV ? kDimV - kFirstV : kPartV;

  const WarpRows<kDimQk> keys;
  const WarpRows<kDimV> values;
  const QuerySums<plan::kAddsQueries, spec::kDType> query_sums;
  const int key;
  float d_k[kCountQk / 8][4], d_v[kCountV / 8][4];
  LearnedGradients learned;  // of two parts of the columns one learns

  ATT_MEMBER OwnKeys(const BackwardParams& p, int k0, unsigned shared)
      : keys(shared, warp_index() * 16),
        values(shared + kOtherRowsOffset, warp_index() * 16),
        query_sums(shared + kScoresOffset, shared),
        key(k0 + warp_index() * 16 + lane_index() / 4),
        learned(p, k0 + warp_index() * 16, kPart == 0) {
    clear(d_k);
    clear(d_v);
  }

  // A stage's queries, the first of which is `query`. `sums`: those of the head's dQ, whose row of
  // that query is `row`.
  ATT_MEMBER void add(const Context& c, int query, bool full, unsigned at, float* sums,
                      long long row) {
    const int lane = lane_index();
    float s[1][kStep / 8][4], d[1][kStep / 8][4];
    keys.multiply(s, at);
    const unsigned references = at + kStatisticsOffset + lane % 4 * 8;
    const ColumnElements<kStep> elements{key, query + lane % 4 * 2, references,
                                         references + kStep * 4};
    unsigned keep[ColumnElements<kStep>::kWords];
    Operand::Factor<kStep> factor;
    const auto keep_pair = [&](int n, int half, float low, float high) {
      factor.set(n, half, low, high);
    };
    elements.drop(c, keep);
    elements.probabilities(c, s[0], full, keep, keep_pair);
    Operand::add_rows<kDimV, kFirstV, kCountV>(d_v, factor, at + kOtherStepOffset);
    values.multiply(d, at + kOtherStepOffset);
    elements.gradients(c, s[0], d[0], keep, keep_pair, learned);
    query_sums.put(factor, warp_index() * 16);
    Operand::add_rows<kDimQk, kFirstQk, kCountQk>(d_k, factor, at);
    if constexpr (plan::kAddsQueries) {
      sync_threads();
      query_sums.add(sums, row);
    }
  }

  ATT_MEMBER void end(const Context& first) { learned.end(first); }
  // When the CTA has no more use for its stages and rows.
  ATT_MEMBER void store(const BackwardParams& p, const Sequence& own, int h_kv, int k0,
                        float d_v_scale, unsigned shared) const {
    const unsigned of_warp =
        shared + warp_index() * 16 * Rows<(kPartQk > kPartV ? kPartQk : kPartV)>::kRowBytes;
    const int row = k0 + warp_index() * 16;
    store_gradient<spec::kHeadDimV, kCountV>(d_v, d_v_scale,
                                             {p.d_v, p.d_v_stride, own.slice, own.kv_first, h_kv},
                                             kFirstV, row, keys_of(p, own), of_warp);
    store_gradient<spec::kHeadDimQk, kCountQk>(d_k, softmax_scale(p),
                                               {p.d_k, p.d_k_stride, own.slice, own.kv_first, h_kv},
                                               kFirstQk, row, keys_of(p, own), of_warp);
  }
};

}  // namespace att
