// Counts the tiles that a mask leaves in a sample of rows and columns: what the cost model asks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "generator/expr/intervals.hpp"

namespace attune::expr {

struct Positions {
  std::int32_t begin = 0, end = 0;
};

struct TileCounts {
  int live = 0;  // not kSkip
  int full = 0;  // of these kFull
  bool operator==(const TileCounts&) const = default;
};

// TileClassifier's answer over a grid of boxes, for a fraction of its time: a step of the analysis
// runs as often as what it depends on changes, and boxes that are alike are seen together.
// Immutable, thread-safe.
class LiveTileCounter {
 public:
  explicit LiveTileCounter(const Expr& mask);

  // For each of `rows` (of queries), its boxes with `columns` (of keys, ascending and disjoint).
  // The box's own positions are ignored.
  std::vector<TileCounts> operator()(TileBox box, std::span<const Positions> rows,
                                     std::span<const Positions> columns) const;

 private:
  std::shared_ptr<const MaskProgram> program_;
  // The steps that tell must and may, by what they depend on: the launch alone, a row, a column.
  std::vector<int> of_launch_, of_row_, of_column_;
};

}  // namespace attune::expr
