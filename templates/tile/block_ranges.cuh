// The pre-pass of the mask compiler: least and greatest value of every kRangeBlock elements of a
// tensor's last dim, so that tiles are classified without reading the tensor.
#pragma once

#include "templates/tile/ranges.cuh"

namespace att {

#if ATT_DEVICE_CODE
ATT_FN int other_lane(int value, int distance) {
  int out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=r"(out) : "r"(value), "r"(distance));
  return out;
}
ATT_FN float other_lane(float value, int distance) {
  float out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(out) : "f"(value), "r"(distance));
  return out;
}
#endif

// Pair `block` of a row of `length` elements: the whole warp makes it, on the CPU the caller. A NaN
// makes both of the pair NaN.
template <typename Element>
ATT_FN void make_pair_of_row(const TensorArg& tensor, long long row, int block, int length) {
  using Range = RangeOf<Element>;
  auto range = Range::nothing();
#if ATT_DEVICE_CODE
  const int lane = thread_index() % 32, lanes = 32;
#else
  const int lane = 0, lanes = 1;
#endif
#pragma unroll 1
  for (int i = lane; i < kRangeBlock; i += lanes) {
    const int at = block * kRangeBlock + i;
    if (at >= length) break;
    const auto value = Range::load(tensor, row * length + at);
    range = hull(range, value, value);
  }
#if ATT_DEVICE_CODE
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    const auto lo = other_lane(range.lo, distance), hi = other_lane(range.hi, distance);
    range = hull(range, lo, hi);
  }
#endif
  if (lane != 0) return;
  const int blocks = (length + kRangeBlock - 1) / kRangeBlock;
  auto* pair =
      static_cast<typename Range::Stored*>(tensor.block_ranges) + 2 * (row * blocks + block);
  pair[0] = range.lo;
  pair[1] = range.hi;
}

// Makes pair number `pair`, in row-major order of (row, block), of a tensor of kDims dims. False,
// and `pair` counted on, when the tensor has not so many.
template <typename Element, int kDims>
ATT_FN bool make_pair_of(const TensorArg& tensor, long long& pair) {
  const int length = tensor.size[kDims - 1];
  const int blocks = (length + kRangeBlock - 1) / kRangeBlock;
  long long pairs = blocks;
#pragma unroll
  for (int i = 0; i + 1 < kDims; ++i) pairs *= tensor.size[i];
  if (pair >= pairs) {
    pair -= pairs;
    return false;
  }
  make_pair_of_row<Element>(tensor, pair / blocks, static_cast<int>(pair % blocks), length);
  return true;
}

}  // namespace att
