// What a warp of a few queries does with the keys that it takes: the decode family's kernels differ
// in who takes which, and in how results are merged.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/products.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kRows = plan::kTileQ;
constexpr int kBlocks = kRows / 16;
constexpr int kDimQk = padded_dim(spec::kHeadDimQk);
constexpr int kDimV = padded_dim(spec::kHeadDimV);

// Shared memory: of each warp kStages times (K, V); Q; what merging needs. In the end the warps'
// results take the place of the stages.
constexpr int kKBytes = plan::kStepKeys * kDimQk * 2;
constexpr int kStageBytes = plan::kStepKeys * (kDimQk + kDimV) * 2;
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
  unsigned q_registers[kBlocks][kDimQk / 16][4];
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

  ATT_MEMBER void keep_q(unsigned shared) {
    using Layout = RowLayout<kDimQk>;
    const int lane = lane_index();
    const unsigned address = shared + Layout::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int k = 0; k < kDimQk / 16; ++k) {
        ldmatrix_x4(q_registers[m][k], Layout::step(address, 2 * k) + m * 16 * Layout::kRowBytes);
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
    const auto fragment = [&](unsigned(&a)[4], int m, int k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q_registers[m][k][i];
    };
    product_qk<kBlocks, plan::kStepKeys, kDimQk, kDimQk / 16>(
        s, fragment, stage + RowLayout<kDimQk>::offset(across_row(lane), across_unit(lane)));
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
    const unsigned v = stage + kKBytes + RowLayout<kDimV>::offset(down_row(lane), down_unit(lane));
#pragma unroll
    for (int j = 0; j < plan::kStepKeys / 16; ++j) {
      unsigned a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const float(&left)[4] = s[m][2 * j];
        const float(&right)[4] = s[m][2 * j + 1];
        a[m][0] = pack_2<spec::kDType>(left[0], left[1]);
        a[m][1] = pack_2<spec::kDType>(left[2], left[3]);
        a[m][2] = pack_2<spec::kDType>(right[0], right[1]);
        a[m][3] = pack_2<spec::kDType>(right[2], right[3]);
      }
      product_pv<kBlocks, kDimV>(o, a, v + 16 * j * RowLayout<kDimV>::kRowBytes);
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
        float* const to = parts.output(warp_index(), row) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n) {
          to[8 * n] = o[m][n][2 * half];
          to[8 * n + 1] = o[m][n][2 * half + 1];
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

}  // namespace att
