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

// The tensor's pairs, or its elements, as a tensor of its own.
ATT_FN TensorArg cells_of(const TensorArg& tensor, bool pairs) {
  TensorArg cells = tensor;
  if (pairs) cells.data = tensor.block_ranges;
  return cells;
}

template <typename Element>
struct RangeOf {  // int
  using Type = IntRange;
  using Stored = int;
  ATT_FN IntRange everything() { return {-2147483647 - 1, 2147483647}; }
  ATT_FN IntRange nothing() { return {2147483647, -2147483647 - 1}; }
  ATT_FN int load(const TensorArg& tensor, long long at) { return load_i32(tensor, at); }
  // Element `at`, or with `pairs` pair `at`: one address, and no branch.
  ATT_FN IntRange load_cell(const TensorArg& tensor, long long at, bool pairs) {
    const TensorArg cells = cells_of(tensor, pairs);
    const long long lo = pairs ? 2 * at : at;
    return {load_i32(cells, lo), load_i32(cells, pairs ? lo + 1 : lo)};
  }
};
template <>
struct RangeOf<bool> {
  using Type = IntRange;
  using Stored = int;
  ATT_FN IntRange everything() { return {0, 1}; }
  ATT_FN IntRange nothing() { return {1, 0}; }
  ATT_FN int load(const TensorArg& tensor, long long at) { return load_bool(tensor, at) ? 1 : 0; }
  ATT_FN IntRange load_cell(const TensorArg& tensor, long long at, bool pairs) {
    if (pairs) return RangeOf<int>::load_cell(tensor, at, pairs);
    const int value = load(tensor, at);
    return {value, value};
  }
};
template <>
struct RangeOf<float> {
  using Type = FloatRange;
  using Stored = float;
  ATT_FN FloatRange everything() { return {not_a_number(), not_a_number()}; }
  ATT_FN FloatRange nothing() { return {infinite(), -infinite()}; }
  ATT_FN float load(const TensorArg& tensor, long long at) { return load_f32(tensor, at); }
  ATT_FN FloatRange load_cell(const TensorArg& tensor, long long at, bool pairs) {
    const TensorArg cells = cells_of(tensor, pairs);
    const long long lo = pairs ? 2 * at : at;
    return {load_f32(cells, lo), load_f32(cells, pairs ? lo + 1 : lo)};
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

// Loops over cells are not unrolled: lanes seldom have more than two, and a kernel holds several
// copies of them.

// Of `count` elements from `first` in row `row`: few are read themselves, more through the
// pre-pass.
template <typename Element>
ATT_FN typename RangeOf<Element>::Type row_range(const TensorArg& tensor, long long row, int size,
                                                 int first, int count) {
  using Range = RangeOf<Element>;
  const bool from_blocks = count > kMaxRangeCells;
  const int first_block = first / kRangeBlock;
  const int blocks = (first + count - 1) / kRangeBlock - first_block + 1;
  if (from_blocks && (tensor.block_ranges == nullptr || blocks > kMaxRangeBlocks)) {
    return Range::everything();
  }
  const int row_blocks = (size + kRangeBlock - 1) / kRangeBlock;
  const long long at = from_blocks ? row * row_blocks + first_block : row * size + first;
  const int cells = from_blocks ? blocks : count;
  auto range = Range::nothing();
#pragma unroll 1
  for (int i = 0; i < cells; ++i) {
    const auto cell = Range::load_cell(tensor, at + i, from_blocks);
    range = hull(range, cell.lo, cell.hi);
  }
  return range;
}

// Least and greatest element over a box of indices, each clamped into its dim. kFromBlocks: the box
// is part of one row. Where it is not, a box of more than a few elements gives `everything`, so one
// call never costs more than kMaxRangeBlocks loads.
template <typename Element, bool kFromBlocks, int kDims>
ATT_FN typename RangeOf<Element>::Type tensor_range(const TensorArg& tensor,
                                                    const IndexRange (&box)[kDims]) {
  using Range = RangeOf<Element>;
  int first[kDims], count[kDims];
  long long row = 0;
  for (int i = 0; i < kDims; ++i) {
    first[i] = clamp_index(box[i].lo, tensor.size[i]);
    count[i] = clamp_index(box[i].hi, tensor.size[i]) - first[i] + 1;
    if (i + 1 < kDims) row = row * tensor.size[i] + first[i];
  }
  const int last = kDims - 1;
  if constexpr (kFromBlocks) {
    return row_range<Element>(tensor, row, tensor.size[last], first[last], count[last]);
  }
  int rows = 1;
  for (int i = 0; i < last; ++i) {
    if (count[i] > kMaxRangeCells) return Range::everything();
    rows *= count[i];
    if (rows > kMaxRangeCells) return Range::everything();
  }
  if (rows * static_cast<long long>(count[last]) > kMaxRangeCells) return Range::everything();
  auto range = Range::nothing();
#pragma unroll 1
  for (int cell = 0; cell < rows; ++cell) {
    int rest = cell;
    long long stride = tensor.size[last], at = first[last];
    for (int i = last - 1; i >= 0; --i) {
      at += stride * (first[i] + (i == 0 ? rest : rest % count[i]));
      if (i == 0) break;
      rest /= count[i];
      stride *= tensor.size[i];
    }
#pragma unroll 1
    for (int i = 0; i < count[last]; ++i) {
      const auto value = Range::load(tensor, at + i);
      range = hull(range, value, value);
    }
  }
  return range;
}

// The same of a tensor whose rows ascend, and a box that is part of one.
template <int kDims>
ATT_FN IntRange ascending_range(const TensorArg& tensor, const IndexRange (&box)[kDims]) {
  constexpr int kLast = kDims - 1;
  long long row = 0;
  for (int i = 0; i < kLast; ++i)
    row = (row + clamp_index(box[i].lo, tensor.size[i])) * tensor.size[i + 1];
  const int size = tensor.size[kLast];
  return {load_i32(tensor, row + clamp_index(box[kLast].lo, size)),
          load_i32(tensor, row + clamp_index(box[kLast].hi, size))};
}

}  // namespace att
