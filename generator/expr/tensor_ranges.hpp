// Smallest and largest value of a tensor over boxes of its elements, as precise as the kernels'
// (templates/tile/ranges.cuh).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"

namespace attune::expr {

// Beyond so many elements a kernel asks the pre-pass's blocks, and beyond so many blocks it gives
// up.
constexpr std::int64_t kMaxRangeCells = 16;
constexpr std::int64_t kMaxRangeBlocks = 64;

// Views the tensor. Thread-safe.
class TensorRanges {
 public:
  // `from_blocks`: the pre-pass runs for this tensor (range_slots).
  TensorRanges(TensorType type, const TensorValues& tensor, bool from_blocks);

  // Range over the box, one interval a dim, each clamped into its dim. Few elements are read one by
  // one, more in one row by whole blocks; of anything else nothing is known. {NaN, NaN} when a NaN
  // is among them.
  RealInterval range(std::span<const IntInterval> box) const;

 private:
  RealInterval everything() const;

  TensorType type_;
  const TensorValues& tensor_;
  std::int64_t row_blocks_ = 0;
  std::vector<RealInterval> blocks_;  // [rows, row_blocks_]; empty without the pre-pass
};

// By slot, of every tensor that `mask` may read; views `tensors`.
std::vector<TensorRanges> ranges_of(const Expr& mask, std::span<const TensorDecl> declared,
                                    std::span<const TensorValues> tensors);

}  // namespace attune::expr
