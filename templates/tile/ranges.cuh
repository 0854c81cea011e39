// What the generated interval code is written with: 64-bit arithmetic, reals that know their error,
// and the range of a tensor's values over a box of indices.
#pragma once

#include "templates/tile/head_support.cuh"

namespace att {

ATT_FN long long min_i64(long long a, long long b) { return a < b ? a : b; }
ATT_FN long long max_i64(long long a, long long b) { return a > b ? a : b; }
// Towards minus infinity; 0 for b = 0.
ATT_FN long long floor_divide_i64(long long a, long long b) {
  if (b == 0) return 0;
  const long long quotient = a / b;
  return quotient - (a % b != 0 && (a ^ b) < 0 ? 1 : 0);
}

// ---- float32 bounds. NaN at either end of a range means anything, and must survive.

#if ATT_DEVICE_CODE
ATT_FN float not_a_number() {
  float x;
  asm("mov.f32 %0, 0f7FC00000;" : "=f"(x));
  return x;
}
ATT_FN float infinite() {
  float x;
  asm("mov.f32 %0, 0f7F800000;" : "=f"(x));
  return x;
}
#else
ATT_FN float not_a_number() { return __builtin_nanf(""); }
ATT_FN float infinite() { return __builtin_huge_valf(); }
#endif
ATT_FN float range_min(float a, float b) { return a < b ? a : b <= a ? b : not_a_number(); }
ATT_FN float range_max(float a, float b) { return a > b ? a : b >= a ? b : not_a_number(); }

// Covers one float32 operation in any rounding or contraction.
ATT_FN float widen_down(float x) { return x - (math_abs(x) * 0x1p-18f + 0x1p-100f); }
ATT_FN float widen_up(float x) { return x + (math_abs(x) * 0x1p-18f + 0x1p-100f); }
// Covers one of the approximate functions.
ATT_FN float widen_coarsely_down(float x) { return x - (math_abs(x) * 0x1p-8f + 0x1p-20f); }
ATT_FN float widen_coarsely_up(float x) { return x + (math_abs(x) * 0x1p-8f + 0x1p-20f); }

// ---- Tensors.

struct IndexRange {  // inclusive
  int lo, hi;
};
struct IntRange {
  int lo, hi;
};
struct FloatRange {
  float lo, hi;
};

ATT_FN IntRange load_int_pair(const void* pairs, long long at) {
  const int* from = static_cast<const int*>(pairs) + 2 * at;
#if ATT_DEVICE_CODE
  IntRange pair;
  asm("ld.global.nc.v2.s32 {%0, %1}, [%2];" : "=r"(pair.lo), "=r"(pair.hi) : "l"(from));
  return pair;
#else
  return {from[0], from[1]};
#endif
}
ATT_FN FloatRange load_float_pair(const void* pairs, long long at) {
  const float* from = static_cast<const float*>(pairs) + 2 * at;
#if ATT_DEVICE_CODE
  FloatRange pair;
  asm("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(pair.lo), "=f"(pair.hi) : "l"(from));
  return pair;
#else
  return {from[0], from[1]};
#endif
}

template <typename Element>
struct RangeOf {  // int
  using Type = IntRange;
  using Stored = int;
  ATT_FN IntRange everything() { return {-2147483647 - 1, 2147483647}; }
  ATT_FN IntRange nothing() { return {2147483647, -2147483647 - 1}; }
  ATT_FN int load(const TensorArg& tensor, long long at) { return load_i32(tensor, at); }
  ATT_FN IntRange load_pair(const void* pairs, long long at) { return load_int_pair(pairs, at); }
};
template <>
struct RangeOf<bool> {
  using Type = IntRange;
  using Stored = int;
  ATT_FN IntRange everything() { return {0, 1}; }
  ATT_FN IntRange nothing() { return {1, 0}; }
  ATT_FN int load(const TensorArg& tensor, long long at) { return load_bool(tensor, at) ? 1 : 0; }
  ATT_FN IntRange load_pair(const void* pairs, long long at) { return load_int_pair(pairs, at); }
};
template <>
struct RangeOf<float> {
  using Type = FloatRange;
  using Stored = float;
  ATT_FN FloatRange everything() { return {not_a_number(), not_a_number()}; }
  ATT_FN FloatRange nothing() { return {infinite(), -infinite()}; }
  ATT_FN float load(const TensorArg& tensor, long long at) { return load_f32(tensor, at); }
  ATT_FN FloatRange load_pair(const void* pairs, long long at) {
    return load_float_pair(pairs, at);
  }
};

ATT_FN IntRange hull(IntRange range, int lo, int hi) {
  return {min_i32(range.lo, lo), max_i32(range.hi, hi)};
}
ATT_FN FloatRange hull(FloatRange range, float lo, float hi) {
  return {range_min(range.lo, lo), range_max(range.hi, hi)};
}

// Elements that are read one by one, at most; and (min, max) pairs.
constexpr int kMaxRangeCells = 16;
constexpr int kMaxRangeBlocks = 64;

// Least and greatest element over a box of indices, each clamped into its dim. Few elements are
// read themselves; more, in one row, through the pre-pass (kFromBlocks); beyond that the answer is
// `everything`, so one call never costs more than kMaxRangeBlocks loads.
template <typename Element, bool kFromBlocks, int kDims>
ATT_FN typename RangeOf<Element>::Type tensor_range(const TensorArg& tensor,
                                                    const IndexRange (&box)[kDims]) {
  using Range = RangeOf<Element>;
  int first[kDims], count[kDims];
  long long cells = 1, row = 0;
  for (int i = 0; i < kDims; ++i) {
    first[i] = clamp_index(box[i].lo, tensor.size[i]);
    count[i] = clamp_index(box[i].hi, tensor.size[i]) - first[i] + 1;
    cells = min_i64(cells * count[i], kMaxRangeCells + 1);
    if (i + 1 < kDims) row = row * tensor.size[i] + first[i];
  }
  auto range = Range::nothing();
  const int last_first = first[kDims - 1], last_count = count[kDims - 1];
  if (cells <= kMaxRangeCells) {
#pragma unroll 1
    for (int cell = 0; cell < static_cast<int>(cells); ++cell) {
      long long at = 0, stride = 1;
      int rest = cell;
      for (int i = kDims - 1; i >= 0; --i) {
        at += stride * (first[i] + rest % count[i]);
        rest /= count[i];
        stride *= tensor.size[i];
      }
      const auto value = Range::load(tensor, at);
      range = hull(range, value, value);
    }
    return range;
  }
  if constexpr (kFromBlocks) {
    const int first_block = last_first / kRangeBlock;
    const int blocks = (last_first + last_count - 1) / kRangeBlock - first_block + 1;
    if (tensor.block_ranges == nullptr || blocks > kMaxRangeBlocks) return Range::everything();
    const int row_blocks = (tensor.size[kDims - 1] + kRangeBlock - 1) / kRangeBlock;
    const long long first_pair = row * row_blocks + first_block;
    // A tile has two or three blocks: unrolled, their loads overlap.
#pragma unroll 4
    for (int i = 0; i < blocks; ++i) {
      const auto pair = Range::load_pair(tensor.block_ranges, first_pair + i);
      range = hull(range, pair.lo, pair.hi);
    }
    return range;
  }
  return Range::everything();
}

}  // namespace att
