// What the sm80 family's backward kernels are made of: how shared memory is divided, where rows
// come from, a warp's product with a stage, and how a gradient leaves.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/elements.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/operands.cuh"
#include "templates/tile/products.cuh"

namespace att {

constexpr int kThreads = 32 * plan::kWarps;
constexpr int kRows = plan::kWarpKeys * plan::kWarps;  // keys or queries of a work item
constexpr int kStep = plan::kStep;                     // queries or keys of a stage
constexpr int kDimQk = padded_dim(spec::kHeadDimQk);
constexpr int kDimV = padded_dim(spec::kHeadDimV);
template <int kColumns>
using Rows = Element::Rows<kColumns>;

// Shared memory: the rows' two tiles (K and V, or Q and dO), then the stages: a tile of each of the
// other two, and what is known of its queries, where these are the columns.
constexpr int kOtherRowsOffset = kRows * Rows<kDimQk>::kRowBytes;
constexpr int kStageOffset = kOtherRowsOffset + kRows * Rows<kDimV>::kRowBytes;
constexpr int kOtherStepOffset = kStep * Rows<kDimQk>::kRowBytes;
constexpr int kStatisticsOffset = kOtherStepOffset + kStep * Rows<kDimV>::kRowBytes;
constexpr int kStageBytes = kStatisticsOffset + kStep * 8;
constexpr int kScoresOffset = kStageOffset + plan::kStages * kStageBytes;
constexpr int kScoreTiles = plan::kSharers > 1 ? 2 : plan::kAddsQueries ? 1 : 0;
// Slopes on their way from warp to warp, in fp32.
constexpr int kSlopesOffset = kScoresOffset + kScoreTiles * 2 * kRows * kStep;
static_assert(kSlopesOffset + (plan::kHasRoles ? 4 * kRows * kStep : 0) <= plan::kSharedBytes);
static_assert(kStageBytes % 128 == 0);

// A tile's 16-byte units, one row after the other, from where a tensor lies.
struct Source {
  const void* data;
  long long offset, stride;  // elements
  // `first`: rows of the slice that lie before.
  ATT_MEMBER Source(const void* data, const Strides& strides, int slice, int first, int h)
      : data(data), offset(slice_offset(strides, slice) + h * strides.head), stride(strides.seq) {
    if constexpr (spec::kIsPacked) offset += first * stride;
  }
  ATT_MEMBER const char* row(int index) const {
    return static_cast<const char*>(data) + Element::kBytes * (offset + index * stride);
  }
};
ATT_FN Source query_source(const void* data, const Strides& strides, const Sequence& s, int h) {
  return {data, strides, s.slice, s.q_first, h};
}
ATT_FN Source key_source(const void* data, const Strides& strides, const Sequence& s, int h_kv) {
  return {data, strides, s.slice, s.kv_first, h_kv};
}
// By the CTA's first kLoaders threads, which call it.
template <int kCount, int kDim, int kLoaders = kThreads>
ATT_FN void load_tile(unsigned to, const Source& from, int first, int length) {
  load_rows<kCount, kDim, kLoaders>(to, from.row(first), from.stride * Element::kBytes,
                                    length - first);
}

// Products of a warp's rows, kBlocks x 16 of the CTA's from `first_row` on, with those of a stage.
template <int kDim>
struct WarpRows {
  unsigned address;  // of this lane, for ldmatrix
  ATT_MEMBER WarpRows(unsigned tile, int first_row)
      : address(tile +
                Rows<kDim>::offset(first_row + down_row(lane_index()), down_unit(lane_index()))) {}
  // s = rows times 8 kColumns of the stage's rows, from `step` on, transposed. kSteps stand in a
  // loop body, within which ptxas reads a step's fragments while those before are multiplied.
  template <int kSteps = 2, int kBlocks, int kColumns>
  ATT_MEMBER void multiply(float (&s)[kBlocks][kColumns][4], unsigned step) const {
    const int lane = lane_index();
    const unsigned from = opaque(address);
    Operand::multiply<kBlocks, 8 * kColumns, kDim, kSteps>(
        s,
        [&](unsigned(&a)[4], int m, int k) {
          ldmatrix_x4(a, Rows<kDim>::step(from, 2 * k) + m * 16 * Rows<kDim>::kRowBytes);
        },
        step + Rows<kDim>::offset(across_row(lane), across_unit(lane)));
  }
};

template <int kCount>
ATT_FN void clear(float (&sum)[kCount][4]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[n][e] = 0.0f;
  }
}

template <int kBlocks, int kCount>
ATT_FN void clear(float (&sums)[kBlocks][kCount][4]) {
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) clear(sums[m]);
}

// Where a gradient's rows of a head lie, of one sequence: row 0 is row `first` of the slice.
struct Destination {
  void* data;
  const Strides& stride;
  int slice, first, h;
};

// Writes a warp's 16 rows of a gradient, from `row` of `length` on, kCount columns of kColumns,
// from `first_column` on. `shared` is the warp's.
template <int kColumns, int kCount>
ATT_FN void store_gradient(const float (&sum)[kCount / 8][4], float scale, const Destination& to,
                           int first_column, int row, int length, unsigned shared) {
  const int lane = lane_index();
#pragma unroll
  for (int n = 0; n < kCount / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Element::store_pair<kCount>(shared, lane / 4 + 8 * half, n, lane, sum[n][2 * half] * scale,
                                  sum[n][2 * half + 1] * scale);
    }
  }
  sync_warp();
  const Strides& stride = to.stride;
  char* const out = static_cast<char*>(to.data) +
                    Element::kBytes * (slice_offset(stride, to.slice) + to.h * stride.head +
                                       (to.first + row) * stride.seq + first_column);
  constexpr int kUnits = kCount / Element::kOfUnit;
#pragma unroll 4
  for (int first = 0; first < 16 * kUnits; first += 32) {
    const int at = (first + lane) / kUnits;
    const int unit = (first + lane) % kUnits;
    if (at < 16 && row + at < length && first_column + Element::kOfUnit * unit < kColumns) {
      copy_shared_to_global_16(out + at * stride.seq * Element::kBytes + unit * 16,
                               shared + Rows<kCount>::offset(at, unit));
    }
  }
  sync_warp();
}

}  // namespace att
