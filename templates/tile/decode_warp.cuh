// What a warp of a few queries does with the keys that it takes: the decode family's kernels differ
// in who takes which, and in how results are merged.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_cache.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kRows = plan::kTileQ;
constexpr int kBlocks = kRows / 16;
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

// Of the 2 * kBlocks rows of a lane.
struct LaneRows {
  int h[kBlocks][2], q[kBlocks][2];

  // Rows behind the item's last one act as it: they read nothing out of bounds and are not stored.
  ATT_MEMBER explicit LaneRows(const Item& item) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min_i32(16 * m + lane_index() / 4 + 8 * half, item.rows() - 1);
        h[m][half] = item.h0 + row / item.queries();
        q[m][half] = item.q0 + row % item.queries();
      }
    }
  }
};

// Starts the copy of the item's queries, rows behind the last as zeros.
ATT_FN void load_q(const ForwardParams& p, const Item& item, unsigned shared) {
  using Layout = RowLayout<kDimQk>;
#pragma unroll 1
  for (int i = thread_index(); i < kRows * Layout::kUnits; i += kThreads) {
    const int row = i / Layout::kUnits, unit = i % Layout::kUnits;
    const bool valid = row < item.rows() && unit * 8 < spec::kHeadDimQk;
    const int h = valid ? item.h0 + row / item.queries() : item.h0;
    const int q = valid ? item.q0 + row % item.queries() : item.q0;
    cp_async_16_or_zero(shared + Layout::offset(row, unit),
                        static_cast<const char*>(p.q) +
                            2 * (query_offset(item.sequence, p.q_stride, h, q) + unit * 8),
                        valid);
  }
}

// What a warp found.
struct WarpPart {
  const ForwardParams& p;
  const Item& item;
  LaneRows lane_rows;
  Cache::Queries<kBlocks, kDimQk> queries;
  float o[kBlocks][kDimV / 8][4];
  RowState<kBlocks> rows;

  ATT_MEMBER WarpPart(const ForwardParams& params, const Item& of)
      : p(params), item(of), lane_rows(of) {
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
        const Context c = context_of(p, item, lane_rows.h[m][half]);
        f(c, lane_rows.q[m][half], m, half);
      }
    }
  }

  // kStepKeys keys from k0 on, whose K and V lie at `stage`.
  ATT_MEMBER void visit(unsigned stage, int k0, bool partial) {
    constexpr int kTiles = plan::kStepKeys / 8;
    const int lane = lane_index();
    float s[kBlocks][kTiles][4];
    Cache::multiply<kBlocks, plan::kStepKeys, kDimQk>(s, queries, stage, stage + kScalesOffset,
                                                      lane);
    const int first_key = k0 + lane % 4 * 2;
    if constexpr (!kFoldScale) {
      const float scale = spec::kScaleAtLaunch ? p.softmax_scale : spec::kSoftmaxScale;
      for_each_row([&](const Context& c, int q, int m, int half) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * half + e];
            x = modified_score(c, x, scale, q, first_key + 8 * n + e);
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
    rows.raise(s, o, 0.0f);
    rows.exponentiate(s);
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
        if (row >= item.rows()) continue;
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

// Calls f(row, column) of every fourth column of the item's rows, each from one thread.
template <typename F>
ATT_FN void for_each_four_columns(const Item& item, const F& f) {
  constexpr int kFours = spec::kHeadDimV / 4;
#pragma unroll 1
  for (int i = thread_index(); i < item.rows() * kFours; i += kThreads) {
    f(i / kFours, i % kFours * 4);
  }
}

// Four columns of a row of O, which `sum` has not divided yet, and with the first ones its LSE.
ATT_FN void write_columns(const ForwardParams& p, const Item& item, int row, int column,
                          const FourFloats& o, float reference, float sum) {
  const int h = item.h0 + row / item.queries();
  const int q = item.q0 + row % item.queries();
  const float factor = finish_row(context_of(p, item, h), reference, sum);
  unsigned* const to = reinterpret_cast<unsigned*>(
      static_cast<char*>(p.o) + 2 * (query_offset(item.sequence, p.o_stride, h, q) + column));
  to[0] = pack_2<spec::kDType>(o.x[0] * factor, o.x[1] * factor);
  to[1] = pack_2<spec::kDType>(o.x[2] * factor, o.x[3] * factor);
  if (p.lse != nullptr && column == 0) {
    p.lse[statistic_offset(p, item.sequence, h) + q] = log_sum_exp(reference, sum);
  }
}

}  // namespace att
