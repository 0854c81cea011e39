#include "generator/explain/block_ranges.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "templates/params.h"

namespace attune {
namespace {

constexpr expr::RealInterval kNothing = {std::numeric_limits<double>::infinity(),
                                         -std::numeric_limits<double>::infinity()};

// A NaN is in no range and spoils every range that it is in.
void widen(expr::RealInterval& range, const expr::RealInterval& other) {
  if (std::isnan(other.lo)) range = other;
  if (std::isnan(range.lo)) return;
  range.lo = std::min(range.lo, other.lo);
  range.hi = std::max(range.hi, other.hi);
}

}  // namespace

BlockRanges::BlockRanges(const expr::TensorValues& tensor) : sizes_(tensor.sizes) {
  const std::int64_t last = sizes_.back();
  blocks_ = (last + att::kRangeBlock - 1) / att::kRangeBlock;
  const auto rows = static_cast<std::int64_t>(tensor.values.size()) / last;
  ranges_.assign(static_cast<std::size_t>(rows * blocks_), kNothing);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < last; ++i) {
      const double value = tensor.values[static_cast<std::size_t>(row * last + i)];
      widen(ranges_[static_cast<std::size_t>(row * blocks_ + i / att::kRangeBlock)],
            {value, value});
    }
  }
}

expr::RealInterval BlockRanges::range(std::span<const expr::IntInterval> box) const {
  expr::RealInterval range = kNothing;
  visit(box, 0, 0, range);
  return range;
}

void BlockRanges::visit(std::span<const expr::IntInterval> box, std::size_t dim, std::int64_t row,
                        expr::RealInterval& range) const {
  const std::int64_t lo = std::clamp<std::int64_t>(box[dim].lo, 0, sizes_[dim] - 1);
  const std::int64_t hi = std::clamp<std::int64_t>(box[dim].hi, 0, sizes_[dim] - 1);
  if (dim + 1 == sizes_.size()) {
    for (std::int64_t block = lo / att::kRangeBlock; block <= hi / att::kRangeBlock; ++block) {
      widen(range, ranges_[static_cast<std::size_t>(row * blocks_ + block)]);
    }
    return;
  }
  for (std::int64_t i = lo; i <= hi; ++i) visit(box, dim + 1, row * sizes_[dim] + i, range);
}

}  // namespace attune
