#include "generator/explain/cells.hpp"

#include <algorithm>

namespace attune {
namespace {

int divide_up(int a, int b) { return (a + b - 1) / b; }

Cell merge(const MaskPicture& picture, int row0, int row1, int column0, int column1) {
  bool all_skip = true, all_full = true;
  double live = 0;
  for (int row = row0; row < row1; ++row) {
    for (int column = column0; column < column1; ++column) {
      const expr::TileClass tile = picture.tile_class(row, column);
      all_skip &= tile == expr::TileClass::kSkip;
      all_full &= tile == expr::TileClass::kFull;
      live += static_cast<double>(picture.live_at(row, column));
    }
  }
  const expr::TileClass merged = all_skip   ? expr::TileClass::kSkip
                                 : all_full ? expr::TileClass::kFull
                                            : expr::TileClass::kPartial;
  return {.tile_class = merged, .live = live / ((row1 - row0) * (column1 - column0))};
}

}  // namespace

CellGrid scale_down(const MaskPicture& picture, int max_rows, int max_columns) {
  CellGrid grid;
  grid.tiles_per_row = divide_up(picture.rows, std::max(max_rows, 1));
  grid.tiles_per_column = divide_up(picture.columns, std::max(max_columns, 1));
  grid.rows = divide_up(picture.rows, grid.tiles_per_row);
  grid.columns = divide_up(picture.columns, grid.tiles_per_column);
  for (int row = 0; row < grid.rows; ++row) {
    const int row0 = row * grid.tiles_per_row,
              row1 = std::min(row0 + grid.tiles_per_row, picture.rows);
    for (int column = 0; column < grid.columns; ++column) {
      const int column0 = column * grid.tiles_per_column,
                column1 = std::min(column0 + grid.tiles_per_column, picture.columns);
      grid.cells.push_back(merge(picture, row0, row1, column0, column1));
    }
  }
  return grid;
}

}  // namespace attune
