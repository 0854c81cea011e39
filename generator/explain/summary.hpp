// The words and numbers that stand beside a picture, on a terminal as in an SVG.
#pragma once

#include <array>
#include <string>

#include "generator/explain/mask_picture.hpp"

namespace attune {

struct ClassLine {
  expr::TileClass tile_class;
  std::string name;     // "full"
  std::string meaning;  // "runs without mask code"
  std::string count;    // "2016 tiles"
  std::string share;    // "49.2 %"
};

struct PictureSummary {
  std::string problem;  // "q_len 8192, kv_len 8192, batch 0, head 0, tiles of 128 x 64"
  std::array<ClassLine, 3> classes;
  std::string live;  // "live: 50.0 % of the elements, 51.2 % of the tiles"
  std::string useful;
};

PictureSummary summarise(const MaskPicture& picture);

}  // namespace attune
