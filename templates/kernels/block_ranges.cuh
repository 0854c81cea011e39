// The pre-pass of the mask compiler: least and greatest value of every kRangeBlock elements of a
// tensor's last dim, so that tiles are classified without reading the tensor. O(tensor), once a
// launch.
#pragma once

#include "templates/tile/ranges.cuh"

#if ATT_DEVICE_CODE
namespace att {

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

// One warp makes pair `block` of `row`. A NaN makes both of the pair NaN.
template <typename Element>
ATT_FN void make_block_range(const TensorArg& tensor, long long row, int block, int length) {
  using Range = RangeOf<Element>;
  const int lane = thread_index() % 32;
  auto range = Range::nothing();
#pragma unroll 1
  for (int i = lane; i < kRangeBlock; i += 32) {
    const int at = block * kRangeBlock + i;
    if (at >= length) break;
    const auto value = Range::load(tensor, row * length + at);
    range = hull(range, value, value);
  }
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) {
    const auto lo = other_lane(range.lo, distance), hi = other_lane(range.hi, distance);
    range = hull(range, lo, hi);
  }
  if (lane != 0) return;
  const int blocks = (length + kRangeBlock - 1) / kRangeBlock;
  auto* pair =
      static_cast<typename Range::Stored*>(tensor.block_ranges) + 2 * (row * blocks + block);
  pair[0] = range.lo;
  pair[1] = range.hi;
}

}  // namespace att

// type: 0 int32, 1 float32, 2 one-byte bool. rows: product of all dims but the last; length: the
// last. One warp a pair, in row-major order of (row, block).
ATT_KERNEL att_block_ranges(const att::TensorArg tensor, int type, int rows, int length) {
  const int blocks = (length + att::kRangeBlock - 1) / att::kRangeBlock;
  const long long pair = static_cast<long long>(att::block_index()) * 4 + att::thread_index() / 32;
  if (pair >= static_cast<long long>(rows) * blocks) return;
  const long long row = pair / blocks;
  const int block = static_cast<int>(pair % blocks);
  using att::kRangeTypes;
  if ((kRangeTypes & 1) != 0 && type == 0) att::make_block_range<int>(tensor, row, block, length);
  if ((kRangeTypes & 2) != 0 && type == 1) att::make_block_range<float>(tensor, row, block, length);
  if ((kRangeTypes & 4) != 0 && type == 2) att::make_block_range<bool>(tensor, row, block, length);
}
#else
namespace att {

template <typename Element>
ATT_FN void make_block_ranges(const TensorArg& tensor, int rows, int length) {
  using Range = RangeOf<Element>;
  auto* pair = static_cast<typename Range::Stored*>(tensor.block_ranges);
  for (long long row = 0; row < rows; ++row) {
    for (int first = 0; first < length; first += kRangeBlock, pair += 2) {
      auto range = Range::nothing();
      for (int at = first; at < min_i32(first + kRangeBlock, length); ++at) {
        const auto value = Range::load(tensor, row * length + at);
        range = hull(range, value, value);
      }
      pair[0] = range.lo;
      pair[1] = range.hi;
    }
  }
}

}  // namespace att

// The whole tensor in one call; arguments as on a GPU.
extern "C" void att_block_ranges(const att::TensorArg* tensor, int type, int rows, int length) {
  if (type == 0) att::make_block_ranges<int>(*tensor, rows, length);
  if (type == 1) att::make_block_ranges<float>(*tensor, rows, length);
  if (type == 2) att::make_block_ranges<bool>(*tensor, rows, length);
}
#endif
