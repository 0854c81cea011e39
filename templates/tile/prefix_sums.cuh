// Sums of the numbers before each, over a CTA.
#pragma once

#include "templates/ptx/platform.cuh"
#include "templates/tile/head_support.cuh"

namespace att {

// values[i] becomes the sum of those up to it, or `most` where that is less; neither is above 2^29.
// The whole CTA calls it, before and after which it has synchronised.
ATT_FN void add_up(int* values, int count, int most) {
  const int i = thread_index();
#pragma unroll 1
  for (int distance = 1; distance < count; distance *= 2) {
    const int before = i >= distance && i < count ? values[i - distance] : 0;
    sync_threads();
    if (i < count) values[i] = min_i32(values[i] + before, most);
    sync_threads();
  }
}

}  // namespace att
