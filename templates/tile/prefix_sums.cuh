// Sums over the CTA that makes a list of packed sequences' items, of kItemThreads threads.
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/head_support.cuh"
#include "templates/tile/lane_sums.cuh"
#include "templates/work_items.h"

namespace att {

constexpr int kItemWarps = kItemThreads / 32;
static_assert(kItemWarps == 32);  // as many as a warp has lanes

// What is added up saturates here, so that int has room for a sum of two.
constexpr int kMostOfSum = 1 << 29;

// values[i] becomes the sum of those up to it, or `most` where that is less; neither is above 2^29.
// The whole CTA calls it, before and after which it has synchronised.
ATT_FN void add_up(int* values, int count, int most) {
  __shared__ int of_warps[kItemWarps];
  const int i = thread_index(), warp = warp_index(), lane = lane_index();
  const auto add = [&](int a, int b) { return min_i32(a + b, most); };
  const int own = sum_up_to_lane(i < count ? values[i] : 0, add);
  if (lane == 31) of_warps[warp] = own;
  sync_threads();
  if (warp == 0) {
    const int up_to = sum_up_to_lane(of_warps[lane], add);
    of_warps[lane] = up_to;
  }
  sync_threads();
  if (i < count) values[i] = warp == 0 ? own : min_i32(own + of_warps[warp - 1], most);
  sync_threads();
}

// Sums of the threads' values, each `most` where that is less.
struct ThreadSum {
  int before, up_to;  // of the threads before this one, and of this one too
  int all;
};

// values[i] becomes the sum of the lanes' up to this one. A loop: what follows is read by nobody
// before, instructions too.
template <int kSums>
ATT_FN void add_up_lanes(int (&values)[kSums], const int (&most)[kSums]) {
  const int lane = lane_index();
#pragma unroll 1
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int before = shuffle_from(values[i], lane - distance);
      if (lane >= distance) values[i] = min_i32(values[i] + before, most[i]);
    }
  }
}

// Sums of several values of each thread, none above its `most`, which is not above kMostOfSum. The
// whole CTA calls it, and synchronises before it does so again.
template <int kSums>
ATT_FN void add_up_threads(const int (&values)[kSums], const int (&most)[kSums],
                           ThreadSum (&sums)[kSums]) {
  __shared__ int of_warps[kSums][kItemWarps];
  const int warp = warp_index(), lane = lane_index();
  int own[kSums], warps[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) own[i] = values[i];
  add_up_lanes(own, most);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (lane == 31) of_warps[i][warp] = own[i];
  }
  sync_threads();
#pragma unroll
  for (int i = 0; i < kSums; ++i) warps[i] = of_warps[i][lane];
  add_up_lanes(warps, most);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int of_warps_before = warp == 0 ? 0 : shuffle_from(warps[i], warp - 1);
    const int of_lanes_before = shuffle_from(own[i], lane - 1);
    sums[i].before = min_i32(of_warps_before + (lane == 0 ? 0 : of_lanes_before), most[i]);
    sums[i].up_to = min_i32(of_warps_before + own[i], most[i]);
    sums[i].all = shuffle_from(warps[i], 31);
  }
}

// The sum of all lanes' values, of all threads' ones, or kMostOfSum where that is less.
ATT_FN int sum_of_lanes(int value) {
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    const unsigned other = shuffle_xor(static_cast<unsigned>(value), distance);
    value = min_i32(value + static_cast<int>(other), kMostOfSum);
  }
  return value;
}
// The whole CTA calls it, and synchronises before it does so again.
ATT_FN int sum_of_all(long long value) {
  __shared__ int of_warps[kItemWarps];
  const int of_warp = sum_of_lanes(value < kMostOfSum ? static_cast<int>(value) : kMostOfSum);
  if (lane_index() == 0) of_warps[warp_index()] = of_warp;
  sync_threads();
  return sum_of_lanes(of_warps[lane_index()]);
}

}  // namespace att
