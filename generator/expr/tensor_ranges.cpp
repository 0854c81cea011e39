#include "generator/expr/tensor_ranges.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "templates/params.h"

namespace attune::expr {
namespace {

constexpr RealInterval kNothing = {std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity()};

// A NaN is in no range and spoils every range that it is in.
void widen(RealInterval& range, const RealInterval& other) {
  if (std::isnan(other.lo)) range = other;
  if (std::isnan(range.lo)) return;
  range.lo = std::min(range.lo, other.lo);
  range.hi = std::max(range.hi, other.hi);
}

}  // namespace

TensorRanges::TensorRanges(TensorType type, const TensorValues& tensor, bool from_blocks)
    : type_(type), tensor_(tensor) {
  if (!from_blocks || tensor.sizes.empty()) return;
  const std::int64_t last = tensor.sizes.back();
  row_blocks_ = (last + att::kRangeBlock - 1) / att::kRangeBlock;
  const auto rows = static_cast<std::int64_t>(tensor.values.size()) / last;
  blocks_.assign(static_cast<std::size_t>(rows * row_blocks_), kNothing);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < last; ++i) {
      const double value = tensor.values[static_cast<std::size_t>(row * last + i)];
      widen(blocks_[static_cast<std::size_t>(row * row_blocks_ + i / att::kRangeBlock)],
            {value, value});
    }
  }
}

RealInterval TensorRanges::range(std::span<const IntInterval> box) const {
  std::int64_t first[att::kMaxTensorDims] = {}, count[att::kMaxTensorDims] = {};
  std::int64_t cells = 1, row = 0;
  const std::size_t dims = tensor_.sizes.size();
  for (std::size_t i = 0; i < dims; ++i) {
    first[i] = std::clamp<std::int64_t>(box[i].lo, 0, tensor_.sizes[i] - 1);
    count[i] = std::clamp<std::int64_t>(box[i].hi, 0, tensor_.sizes[i] - 1) - first[i] + 1;
    cells = std::min(cells * count[i], kMaxRangeCells + 1);
    if (i + 1 < dims) row = row * tensor_.sizes[i] + first[i];
  }
  RealInterval range = kNothing;
  if (cells <= kMaxRangeCells) {
    for (std::int64_t cell = 0; cell < cells; ++cell) {
      std::int64_t at = 0, stride = 1, rest = cell;
      for (std::size_t i = dims; i-- > 0;) {
        at += stride * (first[i] + rest % count[i]);
        rest /= count[i];
        stride *= tensor_.sizes[i];
      }
      const double value = tensor_.values[static_cast<std::size_t>(at)];
      widen(range, {value, value});
    }
    return range;
  }
  const std::int64_t first_block = first[dims - 1] / att::kRangeBlock;
  const std::int64_t last_block = (first[dims - 1] + count[dims - 1] - 1) / att::kRangeBlock;
  const bool one_row = std::all_of(count, count + dims - 1, [](std::int64_t c) { return c == 1; });
  if (blocks_.empty() || !one_row || last_block - first_block >= kMaxRangeBlocks)
    return everything();
  for (std::int64_t block = first_block; block <= last_block; ++block) {
    widen(range, blocks_[static_cast<std::size_t>(row * row_blocks_ + block)]);
  }
  return range;
}

std::vector<TensorRanges> ranges_of(const Expr& mask, std::span<const TensorDecl> declared,
                                    std::span<const TensorValues> tensors) {
  const std::vector<int> from_blocks = range_slots(mask);
  std::vector<TensorRanges> ranges;
  for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
    const bool blocks = std::ranges::find(from_blocks, static_cast<int>(slot)) != from_blocks.end();
    ranges.emplace_back(declared[slot].type, tensors[slot], blocks);
  }
  return ranges;
}

RealInterval TensorRanges::everything() const {
  switch (type_) {
    case TensorType::kInt32:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    case TensorType::kBool:
      return {0, 1};
    case TensorType::kFloat32:
    case TensorType::kFloat16:
    case TensorType::kBFloat16:
      break;
  }
  return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace attune::expr
