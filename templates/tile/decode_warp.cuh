// What a warp of a few queries does with the keys that it takes: the decode family's kernels differ
// in who takes which, and in how results are merged.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_cache.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kDimQk = Cache::padded(spec::kHeadDimQk);
constexpr int kDimV = Cache::padded(spec::kHeadDimV);

// Shared memory: of each warp kStages times (K, V, their scales where they have any); Q; what
// merging needs. In the end the warps' results take the place of the stages.
constexpr int kKBytes = plan::kStepKeys * kDimQk * Cache::kBytes;
constexpr int kScalesOffset = plan::kStepKeys * (kDimQk + kDimV) * Cache::kBytes;
constexpr int kStageBytes = kScalesOffset + Cache::kScaleBytes;
constexpr int kRingBytes = plan::kStages * kStageBytes;
constexpr int kPartStride = kDimV + 4;  // floats; rows fall into different banks
constexpr int kPartBytes = kRows * (kPartStride + 2) * 4;

// s = Q K^T of a step.
ATT_FN void multiply_queries(float (&s)[kBlocks][plan::kStepKeys / 8][4],
                             const Cache::Queries<kBlocks, kDimQk>& queries, unsigned stage,
                             int lane) {
  Cache::multiply<kBlocks, plan::kStepKeys, kDimQk>(s, queries, stage, stage + kScalesOffset, lane);
}

// Queries that are read from shared memory at every step: of 32 wide rows registers have no room
// for the fragments.
struct QueriesInShared {
  unsigned address;

  ATT_MEMBER void keep(unsigned shared) {
    const int lane = lane_index();
    address = shared + RowLayout<kDimQk>::offset(down_row(lane), down_unit(lane));
  }
};
ATT_FN void multiply_queries(float (&s)[kBlocks][plan::kStepKeys / 8][4],
                             const QueriesInShared& queries, unsigned stage, int lane) {
  using Layout = RowLayout<kDimQk>;
  const auto fragment = [&](unsigned(&a)[4], int m, int k) {
    ldmatrix_x4(a, Layout::step(queries.address, 2 * k) + m * 16 * Layout::kRowBytes);
  };
  product_qk<kBlocks, plan::kStepKeys, kDimQk, kDimQk / 16>(
      s, fragment, stage + Layout::offset(across_row(lane), across_unit(lane)));
}

template <bool kInRegisters>
struct QueriesOf {
  using Type = QueriesInShared;
};
template <>
struct QueriesOf<true> {
  using Type = Cache::Queries<kBlocks, kDimQk>;
};

// The rows of an item whose rows are of one sequence, as a warp's part asks for them.
struct ItemRows {
  using Queries = QueriesOf<plan::kQueriesInRegisters>::Type;
  const ForwardParams& p;
  const Item& item;
  LaneRows lane_rows;

  ATT_MEMBER ItemRows(const ForwardParams& params, const Item& of)
      : p(params), item(of), lane_rows(of) {}
  ATT_MEMBER int count() const { return item.rows(); }
  // Of row `half` of the lane in block m.
  ATT_MEMBER Context context(int m, int half) const {
    return context_of(p, item, lane_rows.h[m][half]);
  }
  ATT_MEMBER int query(int m, int half) const { return lane_rows.q[m][half]; }
};

// A row's arithmetic as the compiler rounds it, beside the warp's other rows; else FixedArithmetic.
struct WarpArithmetic {
  template <typename Query, typename Key>
  static ATT_MEMBER float modified_score(const Context& c, float product, float scale, Query q,
                                         Key key) {
    return att::modified_score(c, product, scale, q, key);
  }
  template <typename Rows, typename S, typename O>
  static ATT_MEMBER void raise(Rows& rows, const S& s, O& o) {
    rows.raise(s, o, 0.0f, 0.0f);
  }
  template <typename Rows, typename S>
  static ATT_MEMBER void exponentiate(Rows& rows, S& s) {
    rows.exponentiate(s);
  }
};

// What a warp found for `Rows`.
template <typename Rows>
struct WarpPartOf {
  Rows lane_rows;
  typename Rows::Queries queries;
  float o[kBlocks][kDimV / 8][4];
  RowState<kBlocks> rows;

  template <typename... Args>
  ATT_MEMBER explicit WarpPartOf(const Args&... of) : lane_rows(of...) {
    rows.clear();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
      }
    }
  }

  // Calls f(context, first query, m, half) of each of the lane's rows.
  template <typename F>
  ATT_MEMBER void for_each_row(const F& f) const {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Context c = lane_rows.context(m, half);
        f(c, lane_rows.query(m, half), m, half);
      }
    }
  }

  // kStepKeys keys from k0 on, whose K and V lie at `stage`.
  template <typename Arithmetic = WarpArithmetic>
  ATT_MEMBER void visit(unsigned stage, int k0, bool partial) {
    constexpr int kTiles = plan::kStepKeys / 8;
    const int lane = lane_index();
    float s[kBlocks][kTiles][4];
    multiply_queries(s, queries, stage, lane);
    const int first_key = k0 + lane % 4 * 2;
    if constexpr (!kFoldScale) {
      const float scale = spec::kScaleAtLaunch ? lane_rows.p.softmax_scale : spec::kSoftmaxScale;
      for_each_row([&](const Context& c, int q, int m, int half) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * half + e];
            x = Arithmetic::modified_score(c, x, scale, q, first_key + 8 * n + e);
          }
        }
      });
    }
    if (partial) {
      for_each_row([&](const Context& c, int q, int m, int half) {
        const RowMask row = row_mask(c, q, first_key);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * half + e];
            x = is_live(c, row, 8 * n + e) ? x : -infinity();
          }
        }
      });
    }
    Arithmetic::raise(rows, s, o);
    Arithmetic::exponentiate(rows, s);
    Cache::scale_weights<kBlocks, plan::kStepKeys>(s, stage + kScalesOffset, lane);
    using Layout = Cache::Rows<kDimV>;
    const unsigned v = stage + kKBytes + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int j = 0; j < plan::kStepKeys / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const float(&left)[4] = s[m][2 * j];
        const float(&right)[4] = s[m][2 * j + 1];
        a[m][0] = pack_2<Cache::kWeights>(left[0], left[1]);
        a[m][1] = pack_2<Cache::kWeights>(left[2], left[3]);
        a[m][2] = pack_2<Cache::kWeights>(right[0], right[1]);
        a[m][3] = pack_2<Cache::kWeights>(right[2], right[3]);
      }
      Cache::add_values<kBlocks, kDimV>(o, a, v + 16 * j * Layout::kRowBytes);
    }
  }

  ATT_MEMBER void store(const Parts<kRows, kPartStride>& parts) const {
    const int lane = lane_index();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + lane / 4 + 8 * half;
        const float sum = quad_sum(rows.sum[m][half]);
        if (row >= lane_rows.count()) continue;
        float* const to = parts.output(warp_index(), row) + Cache::first_column(lane);
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n) {
          to[Cache::column(n, 0)] = o[m][n][2 * half];
          to[Cache::column(n, 1)] = o[m][n][2 * half + 1];
        }
        if (lane % 4 == 0) {
          parts.statistic(warp_index(), row)[0] = rows.reference[m][half];
          parts.statistic(warp_index(), row)[1] = sum;
        }
      }
    }
  }
};

using WarpPart = WarpPartOf<ItemRows>;

}  // namespace att
