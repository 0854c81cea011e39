// A mask's picture as text for a terminal and as an SVG file.
#pragma once

#include <string>
#include <string_view>

#include "generator/explain/mask_picture.hpp"

namespace attune {

struct TerminalStyle {
  int width = 80;        // columns of the terminal
  int height = 32;       // lines that the map may take
  bool colours = false;  // ANSI escapes; only for a terminal
};

// The map, scaled down to fit, its legend and its counts. Ends in a newline.
std::string draw_terminal(const MaskPicture& picture, std::string_view title,
                          const TerminalStyle& style = {});

// A self-contained SVG document of the same, at most 256 x 256 cells.
std::string draw_svg(const MaskPicture& picture, std::string_view title);

}  // namespace attune
