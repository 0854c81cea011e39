// What the threads of a CTA before one make together of their values, or those behind it: of a CTA
// of kScanThreads threads, all of which call these. (Lists of items add up several saturating sums
// at once, in loops that are not unrolled: prefix_sums.cuh.)
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/tile/lane_sums.cuh"

namespace att {

constexpr int kScanThreads = 1024;  // as many warps as a warp has lanes

struct CtaScan {
  int before;  // of the threads before this one; `nothing` of the first
  int all;
};

// `join` is associative, and leaves a value as it is beside `nothing`.
template <typename Join>
ATT_FN CtaScan scan_threads(int value, int nothing, const Join& join) {
  __shared__ int of_warps[kScanThreads / 32];
  const int warp = warp_index(), lane = lane_index();
  const int up_to_lane = sum_up_to_lane(value, join);
  sync_threads();  // for whoever scanned before
  if (lane == 31) of_warps[warp] = up_to_lane;
  sync_threads();
  const int up_to_warp = sum_up_to_lane(of_warps[lane], join);
  const int warps_before = shuffle_from(up_to_warp, warp > 0 ? warp - 1 : 0);
  const int lanes_before = shuffle_from(up_to_lane, lane > 0 ? lane - 1 : 0);
  return {join(warp > 0 ? warps_before : nothing, lane > 0 ? lanes_before : nothing),
          shuffle_from(up_to_warp, 31)};
}

// Of the threads behind this one, from the last one on.
template <typename Join>
ATT_FN int scan_threads_behind(int value, int nothing, const Join& join) {
  __shared__ int values[kScanThreads];
  const int thread = thread_index(), mirrored = kScanThreads - 1 - thread;
  values[mirrored] = value;
  sync_threads();
  const int behind = scan_threads(values[thread], nothing, join).before;
  values[thread] = behind;
  sync_threads();
  return values[mirrored];
}

}  // namespace att
