#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "generator/explain/cells.hpp"
#include "generator/explain/draw.hpp"
#include "generator/explain/summary.hpp"

namespace attune {
namespace {

constexpr std::string_view kReset = "\x1b[0m";

std::string_view colour_of(expr::TileClass tile_class) {
  switch (tile_class) {
    case expr::TileClass::kFull:
      return "\x1b[32m";
    case expr::TileClass::kPartial:
      return "\x1b[33m";
    case expr::TileClass::kSkip:
      return "\x1b[90m";
  }
  return "";
}

std::string_view glyph_of(const Cell& cell) {
  if (cell.tile_class == expr::TileClass::kFull) return "█";
  if (cell.tile_class == expr::TileClass::kSkip) return "·";
  return cell.live < 1.0 / 3 ? "░" : cell.live < 2.0 / 3 ? "▒" : "▓";
}

// Cells of one class share one escape.
void append_row(std::string& text, const CellGrid& grid, int row, int glyphs_per_cell,
                bool colours) {
  for (int column = 0; column < grid.columns; ++column) {
    const Cell& cell = grid.at(row, column);
    if (colours && (column == 0 || grid.at(row, column - 1).tile_class != cell.tile_class))
      text += colour_of(cell.tile_class);
    for (int i = 0; i < glyphs_per_cell; ++i) text += glyph_of(cell);
  }
  if (colours) text += kReset;
}

void append_legend(std::string& text, const PictureSummary& summary, bool colours) {
  constexpr std::string_view kGlyphs[] = {"█", "░▒▓", "·"};
  for (std::size_t i = 0; i < summary.classes.size(); ++i) {
    const ClassLine& line = summary.classes[i];
    // Glyphs are one place wide each but three bytes long, which a format's width would count.
    const std::string pad(i == 1 ? 1 : 3, ' ');
    text += fmt::format(
        "  {}{}{}{}{:<8} {:>14} {:>8}   {}\n", colours ? colour_of(line.tile_class) : "",
        kGlyphs[i], colours ? kReset : "", pad, line.name, line.count, line.share, line.meaning);
  }
  text += fmt::format("  {}\n  {}\n", summary.live, summary.useful);
}

}  // namespace

std::string draw_terminal(const MaskPicture& picture, std::string_view title,
                          const TerminalStyle& style) {
  const std::string last_label = fmt::format("{}", picture.shape.q_len);
  const int margin = static_cast<int>(std::max<std::size_t>(last_label.size(), 5)) + 3;
  const int width = std::max(style.width - margin, 8);
  CellGrid grid = scale_down(picture, std::max(style.height, 4), width);
  // A character is about twice as high as wide: two for a cell make tiles look square.
  const int glyphs = std::max(1, std::min(2, width / std::max(grid.columns, 1)));

  const PictureSummary summary = summarise(picture);
  std::string text = fmt::format("{}: {}\n", title, summary.problem);
  const std::string right = fmt::format("{}", picture.shape.kv_len);
  const int map_width = grid.columns * glyphs;
  text += fmt::format("{:>{}}kv 0{:>{}}\n", "", margin, right,
                      std::max(map_width - 4, static_cast<int>(right.size()) + 1));
  for (int row = 0; row < grid.rows; ++row) {
    const std::int64_t q = std::int64_t{row} * grid.tiles_per_row * picture.tile_q;
    // A label on every fourth line is enough to read the scale.
    const std::string label = row == 0 ? "q 0" : row % 4 == 0 ? fmt::format("{}", q) : "";
    text += fmt::format("{:>{}} ", label, margin - 1);
    append_row(text, grid, row, glyphs, style.colours);
    text += '\n';
  }
  if (grid.tiles_per_row > 1 || grid.tiles_per_column > 1) {
    text += fmt::format("{:>{}}one cell is {} x {} tiles\n", "", margin, grid.tiles_per_row,
                        grid.tiles_per_column);
  }
  append_legend(text, summary, style.colours);
  return text;
}

}  // namespace attune
