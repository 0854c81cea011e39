// A picture scaled down: blocks of tiles become cells.
#pragma once

#include <vector>

#include "generator/explain/mask_picture.hpp"

namespace attune {

struct Cell {
  expr::TileClass tile_class = expr::TileClass::kSkip;  // kSkip or kFull when all of its tiles are
  double live = 0;                                      // mean live share of its tiles
  bool operator==(const Cell&) const = default;
};

struct CellGrid {
  int rows = 0, columns = 0;
  int tiles_per_row = 1, tiles_per_column = 1;  // tiles along q and kv that a cell stands for
  std::vector<Cell> cells;                      // [rows, columns]

  const Cell& at(int row, int column) const {
    return cells[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
                 static_cast<std::size_t>(column)];
  }
};

// The finest grid with at most so many rows and columns.
CellGrid scale_down(const MaskPicture& picture, int max_rows, int max_columns);

}  // namespace attune
