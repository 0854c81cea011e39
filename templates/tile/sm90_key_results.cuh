// What the pieces of an item's keys come to: each leaves its O, not divided yet, with the rows'
// references and sums in the workspace, and the last one to come adds all up, in the order of the
// pieces. A warpgroup does so for its own rows: it waits for no other one.
#pragma once

#include "templates/ptx/arrive.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_found_items.cuh"
#include "templates/tile/sm90_key_pieces.cuh"
#include "templates/tile/sm90_softmax.cuh"

namespace att {
namespace sm90 {

struct __align__(16) FourWords {
  float x[4];
};

// A thread's elements of O in fours, then the two rows' references and sums. Those of one number of
// all threads lie beside one another.
constexpr int kResultFours = kColumnsV / 8 + 1;
constexpr int kResultStride = 4 * kWarpgroupThreads;
ATT_FN float* result_of(const PackedParams& p, const KeyPiece& own, int piece, int warpgroup) {
  const long long result = static_cast<long long>(own.result + piece) * kWarpgroups + warpgroup;
  return p.pieces.rows + result * (kResultFours * kResultStride) +
         4 * (thread_index() % kWarpgroupThreads);
}

ATT_FN void store_four(float* to, const FourWords& of) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __builtin_bit_cast(unsigned, of.x[i]);
  store_global_16(to, words);
}

ATT_FN void leave_result(float* to, const Output& o, const RowState& rows) {
#pragma unroll
  for (int n = 0; n < kColumnsV / 8; ++n) {
    store_four(to + n * kResultStride, {o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]});
  }
  FourWords statistics;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // A row that met no key has no say in which reference is the highest.
    statistics.x[2 * half] = rows.sum[half] == 0.0f ? -infinity() : rows.reference[half];
    statistics.x[2 * half + 1] = rows.sum[half];
  }
  store_four(to + (kResultFours - 1) * kResultStride, statistics);
}

ATT_FN FourWords statistics_of(const float* result) {
  return *reinterpret_cast<const FourWords*>(result + (kResultFours - 1) * kResultStride);
}

ATT_FN void add_up_results(const PackedParams& p, const KeyPiece& own, int warpgroup, Output& o,
                           RowState& rows) {
  float highest[2] = {-infinity(), -infinity()};
#pragma unroll 4
  for (int piece = 0; piece < own.pieces; ++piece) {
    const FourWords of = statistics_of(result_of(p, own, piece, warpgroup));
    highest[0] = math_max(highest[0], of.x[0]);
    highest[1] = math_max(highest[1], of.x[2]);
  }
  // Rows without any key: -inf less -inf would be NaN.
  const float base[2] = {highest[0] == -infinity() ? 0.0f : highest[0],
                         highest[1] == -infinity() ? 0.0f : highest[1]};
  rows.sum[0] = rows.sum[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < kColumnsV / 2; ++i) o[i] = 0.0f;
#pragma unroll 1
  for (int piece = 0; piece < own.pieces; ++piece) {
    const float* const result = result_of(p, own, piece, warpgroup);
    const FourWords of = statistics_of(result);
    // Twice its root: what a reference lies too low by the sums are large by, and the weight alone
    // may be too small for a float.
    const float root[2] = {math_exp2(0.5f * as_log2(of.x[0] - base[0])),
                           math_exp2(0.5f * as_log2(of.x[2] - base[1]))};
    rows.sum[0] += root[0] * of.x[1] * root[0];
    rows.sum[1] += root[1] * of.x[3] * root[1];
#pragma unroll
    for (int n = 0; n < kColumnsV / 8; ++n) {
      const FourWords some = *reinterpret_cast<const FourWords*>(result + n * kResultStride);
#pragma unroll
      for (int i = 0; i < 4; ++i) o[4 * n + i] += root[i / 2] * some.x[i] * root[i / 2];
    }
  }
  rows.reference[0] = base[0];
  rows.reference[1] = base[1];
}

// Whether the warpgroup's O and rows are now the item's; else another one has, or will have, them.
ATT_FN bool gather_pieces(const PackedParams& p, const KeyPiece& own, int warpgroup, Output& o,
                          RowState& rows) {
  leave_result(result_of(p, own, own.piece, warpgroup), o, rows);
  named_barrier_sync(warpgroup_barrier(warpgroup), kWarpgroupThreads);
  bool is_last = false;
  if (thread_index() % kWarpgroupThreads == 0) {
    wait_for_counters();
    int* const counter = p.pieces.arrivals + own.result * kWarpgroups + warpgroup;
    is_last = arrive(counter) == own.pieces - 1;
  }
  const bool any = named_barrier_any(warpgroup_barrier(warpgroup), kWarpgroupThreads, is_last);
  if (!shuffle_from(any, 0)) return false;
  add_up_results(p, own, warpgroup, o, rows);
  return true;
}

}  // namespace sm90
}  // namespace att
