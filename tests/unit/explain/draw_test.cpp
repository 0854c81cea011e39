#include "generator/explain/draw.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace attune {
namespace {

using testing::HasSubstr;
using testing::Not;

MaskPicture causal(std::int64_t length, int tile) {
  const auto spec =
      parse_spec("{attune: 1, name: m, dtype: bf16, head_dim: 64, mask: causal}", "test.yaml");
  EXPECT_TRUE(spec.ok());
  const auto picture = picture_mask(*spec, {.shape = {1, 1, 1, length, length},
                                            .tile_q = tile,
                                            .tile_kv = tile,
                                            .scalars = {},
                                            .tensors = {}});
  EXPECT_TRUE(picture.ok());
  return *picture;
}

TEST(DrawTerminal, DrawsTheMap) {
  EXPECT_EQ(draw_terminal(causal(8, 2), "causal"),
            "causal: q_len 8, kv_len 8, batch 0, head 0, tiles of 2 x 2\n"
            "        kv 0   8\n"
            "    q 0 ▓▓······\n"
            "        ██▓▓····\n"
            "        ████▓▓··\n"
            "        ██████▓▓\n"
            "  █   full            6 tiles   37.5 %   runs without mask code\n"
            "  ░▒▓ partial         4 tiles   25.0 %   evaluates the mask\n"
            "  ·   skip            6 tiles   37.5 %   is never loaded\n"
            "  live: 56.2 % of the elements, 62.5 % of the tiles\n"
            "  90.0 % of what is computed is live\n");
}

// The places that a line takes: continuation bytes of UTF-8 take none.
std::size_t places(std::string_view line) {
  return static_cast<std::size_t>(std::ranges::count_if(
      line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

TEST(DrawTerminal, FitsTheTerminal) {
  for (const int width : {1, 40, 80, 200}) {
    std::istringstream lines(
        draw_terminal(causal(16384, 64), "causal", {.width = width, .height = 20}));
    std::string line;
    int map_lines = 0;
    while (std::getline(lines, line)) {
      const bool map =
          line.find("·") != std::string::npos && line.find("skip") == std::string::npos;
      map_lines += map;
      if (map && width > 1) {
        EXPECT_LE(places(line), static_cast<std::size_t>(width));
      }
    }
    EXPECT_GT(map_lines, 4);
    EXPECT_LE(map_lines, 20);
  }
}

TEST(DrawTerminal, ColoursOnlyWhenAsked) {
  EXPECT_THAT(draw_terminal(causal(8, 2), "causal"), Not(HasSubstr("\x1b")));
  const std::string coloured = draw_terminal(causal(8, 2), "causal", {.colours = true});
  EXPECT_THAT(coloured, HasSubstr("\x1b[32m█"));
  std::istringstream lines(coloured);
  std::string line;
  while (std::getline(lines, line)) {
    // No line leaves its colour behind.
    const std::size_t last = line.rfind("\x1b[");
    if (last != std::string::npos) {
      EXPECT_EQ(line.substr(last, 4), "\x1b[0m");
    }
  }
}

TEST(DrawSvg, IsSelfContained) {
  const std::string svg = draw_svg(causal(1024, 64), "a < b & \"c\"");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("<title>a &lt; b &amp; &quot;c&quot;</title>"));
  EXPECT_THAT(svg, HasSubstr("120 tiles"));
  EXPECT_THAT(svg, HasSubstr("live: 50.0 % of the elements"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(DrawSvg, StaysSmall) { EXPECT_LT(draw_svg(causal(65536, 64), "causal").size(), 200000u); }

}  // namespace
}  // namespace attune
