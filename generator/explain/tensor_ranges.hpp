// Smallest and largest value of a tensor over boxes of its elements, as precise as the kernels'
// (templates/tile/ranges.cuh).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"

namespace attune {

// Beyond so many elements a kernel asks the pre-pass's blocks, and beyond so many blocks it gives
// up.
constexpr std::int64_t kMaxRangeCells = 16;
constexpr std::int64_t kMaxRangeBlocks = 64;

// Views the tensor. Thread-safe.
class TensorRanges {
 public:
  // `from_blocks`: the pre-pass runs for this tensor (expr::range_slots).
  TensorRanges(expr::TensorType type, const expr::TensorValues& tensor, bool from_blocks);

  // Range over the box, one interval a dim, each clamped into its dim. Few elements are read one by
  // one, more in one row by whole blocks; of anything else nothing is known. {NaN, NaN} when a NaN
  // is among them.
  expr::RealInterval range(std::span<const expr::IntInterval> box) const;

 private:
  expr::RealInterval everything() const;

  expr::TensorType type_;
  const expr::TensorValues& tensor_;
  std::int64_t row_blocks_ = 0;
  std::vector<expr::RealInterval> blocks_;  // [rows, row_blocks_]; empty without the pre-pass
};

}  // namespace attune
