// The rows of an item that one CTA takes, its warps together: queries of the heads that share a K/V
// head.
#pragma once

#include "templates/items.h"
#include "templates/kernels/head.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/smem_layout.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kRows = plan::kTileQ;
constexpr int kBlocks = kRows / 16;

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

// Starts the copy of the item's queries to rows of kDim elements, rows behind the last and columns
// behind the head's as zeros.
template <int kDim>
ATT_FN void load_q(const ForwardParams& p, const Item& item, unsigned shared) {
  using Layout = RowLayout<kDim>;
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

constexpr int kFoursOfRow = spec::kHeadDimV / 4;  // of columns

// Calls f(row, column) of every fourth column of the item's rows, each from one thread, which takes
// kAtOnce at once.
template <int kAtOnce = 1, typename F>
ATT_FN void for_each_four_columns(const Item& item, const F& f) {
#pragma unroll kAtOnce
  for (int i = thread_index(); i < item.rows() * kFoursOfRow; i += kThreads) {
    f(i / kFoursOfRow, i % kFoursOfRow * 4);
  }
}

// Four columns of a row of O, which `sum` has not divided yet, and with the first ones its LSE.
ATT_FN void write_columns(const ForwardParams& p, const Item& item, int row, int column,
                          const FourFloats& o, float reference, float sum) {
  const int h = item.h0 + row / item.queries();
  const int q = item.q0 + row % item.queries();
  const float factor = finish_row(context_of(p, item, h), reference, sum);
  store_global_8(
      static_cast<char*>(p.o) + 2 * (query_offset(item.sequence, p.o_stride, h, q) + column),
      pack_2<spec::kDType>(o.x[0] * factor, o.x[1] * factor),
      pack_2<spec::kDType>(o.x[2] * factor, o.x[3] * factor));
  if (p.lse != nullptr && column == 0) {
    p.lse[lse_offset(p, item.sequence, h, q)] = log_sum_exp(reference, sum);
  }
}

}  // namespace att
