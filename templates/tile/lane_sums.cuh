// Sums over the lanes of a warp.
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/ptx/shuffles.cuh"

namespace att {

// What `add` makes of the values of the lanes up to this one.
template <typename Add>
ATT_FN int sum_up_to_lane(int value, const Add& add) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int lane = lane_index();
    const int before = shuffle_from(value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value = add(value, before);
  }
  return value;
}

ATT_FN int sum_up_to_lane(int value) {
  return sum_up_to_lane(value, [&](int a, int b) { return a + b; });
}

}  // namespace att
