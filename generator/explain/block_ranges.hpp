// Smallest and largest value of a tensor over boxes of its elements, as the kernels' pre-pass has
// them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"

namespace attune {

class BlockRanges {
 public:
  // `tensor` has at least one element.
  explicit BlockRanges(const expr::TensorValues& tensor);

  // Range over the box, one interval a dim, each clamped into its dim; the last one widened to
  // whole blocks.
  expr::RealInterval range(std::span<const expr::IntInterval> box) const;

 private:
  void visit(std::span<const expr::IntInterval> box, std::size_t dim, std::int64_t row,
             expr::RealInterval& range) const;

  std::vector<std::int64_t> sizes_;
  std::int64_t blocks_ = 0;                 // of one row
  std::vector<expr::RealInterval> ranges_;  // [rows, blocks]
};

}  // namespace attune
