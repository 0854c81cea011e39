// Where several warps of a CTA share rows, each with keys of its own: what they found becomes one.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

// A warp's O, references and sums as its lanes hold them, 16 bytes of each lane after the other.
template <int kBlocks, int kTiles>
struct WarpPart {
  static constexpr int kUnit = 32 * 16;
  static constexpr int kBytes = kBlocks * (kTiles + 1) * kUnit;

  static ATT_MEMBER unsigned unit(unsigned at, int m, int n) {
    return at + static_cast<unsigned>((m * (kTiles + 1) + n) * kUnit + lane_index() * 16);
  }

  static ATT_MEMBER void store(unsigned at, const RowState<kBlocks>& rows,
                               const float (&o)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const float state[4] = {rows.reference[m][0], rows.reference[m][1], rows.sum[m][0],
                              rows.sum[m][1]};
      store_shared_floats(unit(at, m, kTiles), state);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) store_shared_floats(unit(at, m, n), o[m][n]);
    }
  }

  // Joins what lies there with the rows and O of this warp.
  static ATT_MEMBER void join(unsigned at, RowState<kBlocks>& rows,
                              float (&o)[kBlocks][kTiles][4]) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      float state[4];
      load_shared_floats(unit(at, m, kTiles), state);
      float own[2], other[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float raised = math_max(rows.reference[m][half], state[half]);
        own[half] = math_exp2(as_log2(rows.reference[m][half] - finite(raised)));
        other[half] = math_exp2(as_log2(state[half] - finite(raised)));
        rows.reference[m][half] = raised;
        rows.sum[m][half] = rows.sum[m][half] * own[half] + state[2 + half] * other[half];
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float part[4];
        load_shared_floats(unit(at, m, n), part);
#pragma unroll
        for (int e = 0; e < 4; ++e) o[m][n][e] = o[m][n][e] * own[e / 2] + part[e] * other[e / 2];
      }
    }
  }
};

// Of kGroups groups of warps for kRowGroups warps' rows the first one's have all of it afterwards.
// Room for the others' parts is at `shared`. All threads call it.
template <int kGroups, int kRowGroups, int kBlocks, int kTiles>
ATT_FN void merge_key_groups(unsigned shared, int group, int row_group, RowState<kBlocks>& rows,
                             float (&o)[kBlocks][kTiles][4]) {
  using Part = WarpPart<kBlocks, kTiles>;
  const unsigned place = shared + static_cast<unsigned>(row_group * Part::kBytes);
  if (group > 0) Part::store(place + (group - 1) * kRowGroups * Part::kBytes, rows, o);
  sync_threads();
  if (group > 0) return;
#pragma unroll 1
  for (int other = 0; other < kGroups - 1; ++other) {
    Part::join(place + other * kRowGroups * Part::kBytes, rows, o);
  }
}

}  // namespace att
