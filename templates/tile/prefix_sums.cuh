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

// The sum of all threads' values. The whole CTA calls it, before and after which it has
// synchronised.
ATT_FN long long sum_of_all(long long value) {
  __shared__ long long of_warps[kItemWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const unsigned low = shuffle_xor(static_cast<unsigned>(value), distance);
    const unsigned high = shuffle_xor(static_cast<unsigned>(value >> 32), distance);
    value += static_cast<long long>(static_cast<unsigned long long>(high) << 32 | low);
  }
  if (lane_index() == 0) of_warps[warp_index()] = value;
  sync_threads();
  long long sum = 0;
#pragma unroll
  for (int warp = 0; warp < kItemWarps; ++warp) sum += of_warps[warp];
  sync_threads();
  return sum;
}

}  // namespace att
