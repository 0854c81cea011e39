#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "generator/explain/cells.hpp"
#include "generator/explain/draw.hpp"
#include "generator/explain/summary.hpp"

namespace attune {
namespace {

constexpr int kMaxCells =
    256;  // along each side: enough to see any structure, few enough for any viewer
constexpr double kMapSize = 512;  // of the longer side, in user units
constexpr double kShortest = 24;  // of the shorter side
constexpr double kLeft = 64, kTop = 76, kLegendRow = 22;
constexpr double kWidth = kLeft + kMapSize + 24;

constexpr std::string_view kFull = "#1b7f5c", kSkip = "#eef0f3";
// Partial tiles run from pale, few elements live, to deep, nearly all.
constexpr std::string_view kPartial[] = {"#fde3b0", "#f9c46b", "#f0a030", "#d97f0e"};

std::string_view fill_of(const Cell& cell) {
  if (cell.tile_class == expr::TileClass::kFull) return kFull;
  if (cell.tile_class == expr::TileClass::kSkip) return kSkip;
  const int shade =
      static_cast<int>(std::floor(cell.live * static_cast<double>(std::size(kPartial))));
  return kPartial[std::clamp<int>(shade, 0, std::size(kPartial) - 1)];
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else if (c == '"') {
      safe += "&quot;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      safe += c;
    }
  }
  return safe;
}

std::string rect(double x, double y, double width, double height, std::string_view fill) {
  return fmt::format(
      "<rect x=\"{:.6g}\" y=\"{:.6g}\" width=\"{:.6g}\" height=\"{:.6g}\" fill=\"{}\"/>\n", x, y,
      width, height, fill);
}

std::string label(double x, double y, std::string_view anchor, std::string_view style,
                  std::string_view text) {
  return fmt::format("<text x=\"{:.6g}\" y=\"{:.6g}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, style, escaped(text));
}

// The cells, equal neighbours of a row as one rectangle; what is skipped is the background.
std::string map_of(const CellGrid& grid, double cell_width, double cell_height) {
  std::string svg;
  for (int row = 0; row < grid.rows; ++row) {
    for (int column = 0; column < grid.columns;) {
      const std::string_view fill = fill_of(grid.at(row, column));
      int end = column + 1;
      while (end < grid.columns && fill_of(grid.at(row, end)) == fill) ++end;
      if (fill != kSkip)
        svg += rect(kLeft + column * cell_width, kTop + row * cell_height,
                    (end - column) * cell_width, cell_height, fill);
      column = end;
    }
  }
  return svg;
}

std::string legend_of(const PictureSummary& summary, double y) {
  std::string svg;
  for (const ClassLine& line : summary.classes) {
    if (line.tile_class == expr::TileClass::kPartial) {
      double x = kLeft;
      for (const std::string_view fill : kPartial) svg += rect(x, y, 7, 14, fill), x += 7;
    } else {
      svg += rect(kLeft, y, 28, 14, line.tile_class == expr::TileClass::kFull ? kFull : kSkip);
    }
    svg += label(kLeft + 38, y + 11, "start", "t", fmt::format("{}: {}", line.name, line.meaning));
    svg += label(kLeft + kMapSize - 70, y + 11, "end", "t", line.count);
    svg += label(kLeft + kMapSize, y + 11, "end", "t", line.share);
    y += kLegendRow;
  }
  svg += label(kLeft, y + 13, "start", "t", summary.live);
  svg += label(kLeft, y + 13 + kLegendRow, "start", "t", summary.useful);
  return svg;
}

}  // namespace

std::string draw_svg(const MaskPicture& picture, std::string_view title) {
  const CellGrid grid = scale_down(picture, kMaxCells, kMaxCells);
  const auto q = static_cast<double>(picture.shape.q_len),
             kv = static_cast<double>(picture.shape.kv_len);
  const double unit = kMapSize / std::max(q, kv);
  const double width = std::max(kv * unit, kShortest), height = std::max(q * unit, kShortest);
  // The last cell of a side may reach over the end of the sequence; the clip cuts it.
  const double cell_width = width * grid.tiles_per_column * picture.tile_kv / kv;
  const double cell_height = height * grid.tiles_per_row * picture.tile_q / q;
  const double legend = kTop + height + 28;
  const double total = legend + 5 * kLegendRow + 12;

  const PictureSummary summary = summarise(picture);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.6g} {1:.6g}\" width=\"{0:.6g}\" "
      "height=\"{1:.6g}\">\n"
      "<title>{2}</title>\n"
      "<style>text{{font-family:ui-sans-serif,system-ui,sans-serif;fill:#1c2430}}.h{{font-size:"
      "17px;font-weight:600}}"
      ".t{{font-size:12.5px}}.a{{font-size:11px;fill:#5a6472}}</style>\n"
      "<clipPath id=\"map\"><rect x=\"{3:.6g}\" y=\"{4:.6g}\" width=\"{5:.6g}\" "
      "height=\"{6:.6g}\"/></clipPath>\n",
      kWidth, total, escaped(title), kLeft, kTop, width, height);
  svg += rect(0, 0, kWidth, total, "#ffffff");
  svg += label(kLeft, 26, "start", "h", title);
  svg += label(kLeft, 46, "start", "t", summary.problem);
  svg += label(kLeft, kTop - 7, "start", "a", "kv_idx 0");
  svg += label(kLeft + width, kTop - 7, "end", "a", fmt::format("{}", picture.shape.kv_len));
  svg += label(kLeft - 7, kTop + 10, "end", "a", "q_idx 0");
  svg += label(kLeft - 7, kTop + height, "end", "a", fmt::format("{}", picture.shape.q_len));
  svg += "<g clip-path=\"url(#map)\" shape-rendering=\"crispEdges\">\n" +
         rect(kLeft, kTop, width, height, kSkip) + map_of(grid, cell_width, cell_height) + "</g>\n";
  svg += fmt::format(
      "<rect x=\"{:.6g}\" y=\"{:.6g}\" width=\"{:.6g}\" height=\"{:.6g}\" fill=\"none\" "
      "stroke=\"#aab2bd\"/>\n",
      kLeft, kTop, width, height);
  svg += legend_of(summary, legend);
  return svg + "</svg>\n";
}

}  // namespace attune
