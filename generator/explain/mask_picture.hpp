// What a mask looks like to a kernel: the class of every tile, and how much of it is live.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/expr/intervals.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

struct PictureRequest {
  ProblemShape shape;
  int tile_q = 128;
  int tile_kv = 64;
  std::int64_t b = 0, h = 0;
  std::span<const double> scalars;              // by slot; constants may hold anything
  std::span<const expr::TensorValues> tensors;  // by slot, in the declared sizes
  // Elements of partial tiles to evaluate at most; beyond that each tile is sampled on a grid.
  std::int64_t max_elements = std::int64_t{1} << 22;
};

struct TileCounts {
  std::int64_t skip = 0, partial = 0, full = 0;
  std::int64_t all() const { return skip + partial + full; }
};

struct MaskPicture {
  ProblemShape shape;
  int tile_q = 0, tile_kv = 0;
  std::int64_t b = 0, h = 0;
  int rows = 0, columns = 0;              // tiles along q and kv
  std::vector<expr::TileClass> classes;   // [rows, columns]
  std::vector<float> live;                // [rows, columns], live share of the tile's elements
  std::vector<expr::KvBounds> kv_bounds;  // [rows], in elements: where the kernel's loop runs
  TileCounts counts;
  double live_share = 0;  // of all elements
  bool sampled = false;   // live shares of partial tiles are estimates

  expr::TileClass tile_class(int row, int column) const {
    return classes[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
                   static_cast<std::size_t>(column)];
  }
  float live_at(int row, int column) const {
    return live[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
                static_cast<std::size_t>(column)];
  }
  // Of the tiles that a kernel computes, the share of elements that are live.
  double useful_share() const;
};

// Classifies every tile as a kernel does: tensors through the ranges of blocks of 64 elements, a
// tile that reaches over kv_len is partial. kBadInput when a size, b, h or a tensor does not fit
// the spec, or the picture would have more than 2^20 tiles. Pure and thread-safe.
Result<MaskPicture> picture_mask(const AttentionSpec& spec, const PictureRequest& request);

}  // namespace attune
