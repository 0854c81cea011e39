#include "generator/explain/mask_picture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "generator/explain/cells.hpp"
#include "generator/expr/tensor_ranges.hpp"

namespace attune {
namespace {

using expr::TileClass;

AttentionSpec spec_with(std::string_view more) {
  auto spec = parse_spec("attune: 1\nname: m\ndtype: bf16\nhead_dim: 64\n" + std::string(more),
                         "test.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? *spec : AttentionSpec{};
}

MaskPicture paint(const AttentionSpec& spec, const PictureRequest& request) {
  auto picture = picture_mask(spec, request);
  EXPECT_TRUE(picture.ok()) << render(picture.error());
  return picture.ok() ? *picture : MaskPicture{};
}

// One character a tile, one line a row of tiles.
std::string classes_of(const MaskPicture& picture) {
  std::string text;
  for (int row = 0; row < picture.rows; ++row) {
    for (int column = 0; column < picture.columns; ++column) {
      const TileClass tile = picture.tile_class(row, column);
      text += tile == TileClass::kFull ? '#' : tile == TileClass::kSkip ? '.' : '+';
    }
    text += '\n';
  }
  return text;
}

PictureRequest request_of(std::int64_t q_len, std::int64_t kv_len, int tile_q, int tile_kv) {
  return {.shape = {1, 1, 1, q_len, kv_len},
          .tile_q = tile_q,
          .tile_kv = tile_kv,
          .scalars = {},
          .tensors = {}};
}

TEST(MaskPicture, ClassesOfKnownMasks) {
  const struct {
    std::string_view yaml;
    PictureRequest request;
    std::string_view classes;
  } cases[] = {
      {"", request_of(8, 8, 4, 4), "##\n##\n"},
      {"", request_of(8, 7, 4, 4), "#+\n#+\n"},  // the ragged end needs a bound check
      {"", request_of(7, 8, 4, 4), "##\n##\n"},
      {"mask: causal\n", request_of(8, 8, 2, 2), "+...\n#+..\n##+.\n###+\n"},
      {"mask: causal\n", request_of(4, 8, 2, 2), "##+.\n###+\n"},
      {"mask: causal_top_left\n", request_of(4, 8, 2, 2), "+...\n#+..\n"},
      {"mask: sliding_window(2)\n", request_of(8, 8, 2, 2), "+...\n++..\n.++.\n..++\n"},
      {"mask: prefix_lm(4)\n", request_of(8, 8, 2, 2), "##..\n##..\n##+.\n###+\n"},
      {"mask: 'false'\n", request_of(4, 4, 2, 2), "..\n..\n"},
  };
  for (const auto& test : cases)
    EXPECT_EQ(classes_of(paint(spec_with(test.yaml), test.request)), test.classes) << test.yaml;
}

TEST(MaskPicture, CountsAndShares) {
  const MaskPicture picture = paint(spec_with("mask: causal\n"), request_of(8, 8, 2, 2));
  EXPECT_EQ(picture.counts.skip, 6);
  EXPECT_EQ(picture.counts.partial, 4);
  EXPECT_EQ(picture.counts.full, 6);
  EXPECT_DOUBLE_EQ(picture.live_share, 36.0 / 64);
  EXPECT_DOUBLE_EQ(picture.useful_share(), 36.0 / 40);
  EXPECT_FLOAT_EQ(picture.live_at(0, 0), 0.75F);
  EXPECT_FLOAT_EQ(picture.live_at(0, 1), 0);
  EXPECT_FALSE(picture.sampled);
  ASSERT_EQ(picture.kv_bounds.size(), 4u);
  EXPECT_EQ(picture.kv_bounds[0].end, 2);
  EXPECT_EQ(picture.kv_bounds[3].end, 8);
}

// Tensors count through blocks of 64 elements, as in the kernels.
TEST(MaskPicture, ReadsTensors) {
  const AttentionSpec spec = spec_with(
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\nmask: doc[b, q_idx] == doc[b, "
      "kv_idx]\n");
  expr::TensorValues doc{.sizes = {2, 256}, .values = {}};
  for (int i = 0; i < 512; ++i) doc.values.push_back(i < 256 ? 0 : (i - 256) / 128);
  PictureRequest request = request_of(256, 256, 64, 64);
  request.shape.batch = 2;
  request.tensors = std::span(&doc, 1);
  EXPECT_EQ(classes_of(paint(spec, request)), "####\n####\n####\n####\n");
  request.b = 1;
  const MaskPicture picture = paint(spec, request);
  EXPECT_EQ(classes_of(picture), "##..\n##..\n..##\n..##\n");
  EXPECT_DOUBLE_EQ(picture.live_share, 0.5);
}

TEST(MaskPicture, SamplesWhatIsTooLarge) {
  PictureRequest request = request_of(512, 512, 128, 64);
  const AttentionSpec spec = spec_with("mask: (q_idx - kv_idx) % 8 == 0\n");
  const MaskPicture exact = paint(spec, request);
  request.max_elements = 4096;
  const MaskPicture sampled = paint(spec, request);
  EXPECT_FALSE(exact.sampled);
  EXPECT_DOUBLE_EQ(exact.live_share, 0.125);
  EXPECT_TRUE(sampled.sampled);
  EXPECT_NEAR(sampled.live_share, 0.125, 0.05);
}

TEST(MaskPicture, RefusesWhatDoesNotFit) {
  const AttentionSpec plain = spec_with("mask: causal\n");
  const AttentionSpec with_tensor =
      spec_with("tensors: {doc: {dtype: int32, dims: [kv_len]}}\nmask: doc[kv_idx] == 1\n");
  PictureRequest heads = request_of(8, 8, 2, 2), wide = heads, tile = heads, huge = heads,
                 odd = heads, tensor = heads;
  heads.h = 1;
  wide.shape.q_len = 0;
  tile.tile_kv = 0;
  huge = request_of(1 << 20, 1 << 20, 16, 16);
  odd.shape.heads = 3;
  odd.shape.kv_heads = 2;
  const expr::TensorValues wrong{.sizes = {7}, .values = std::vector<double>(7)};
  tensor.tensors = std::span(&wrong, 1);
  for (const PictureRequest& request : {heads, wide, tile, huge, odd, tensor}) {
    const auto picture = picture_mask(plain, request);
    ASSERT_FALSE(picture.ok());
    EXPECT_EQ(picture.error().id, "picture-request");
  }
  EXPECT_FALSE(picture_mask(with_tensor, request_of(8, 8, 2, 2)).ok());
  EXPECT_FALSE(picture_mask(with_tensor, tensor).ok());
}

// A table of blocks is small, and read element by element.
TEST(MaskPicture, ReadsTables) {
  const AttentionSpec spec =
      spec_with("tensors: {table: {dtype: bool, dims: [2, 4]}}\nmask: block_sparse(table, 64)\n");
  const expr::TensorValues table{.sizes = {2, 4}, .values = {1, 0, 0, 1, 0, 1, 1, 0}};
  PictureRequest request = request_of(128, 256, 64, 64);
  request.tensors = std::span(&table, 1);
  EXPECT_EQ(classes_of(paint(spec, request)), "#..#\n.##.\n");
}

TEST(TensorRanges, AreAsPreciseAsTheKernels) {
  expr::TensorValues tensor{.sizes = {2, 3, 130}, .values = {}};
  for (int i = 0; i < 2 * 3 * 130; ++i) tensor.values.push_back(i);
  const auto range = [&](bool blocks, const std::array<expr::IntInterval, 3>& box) {
    return expr::TensorRanges(expr::TensorType::kInt32, tensor, blocks).range(box);
  };
  const auto expect = [](const expr::RealInterval& range, double lo, double hi) {
    EXPECT_EQ(range.lo, lo);
    EXPECT_EQ(range.hi, hi);
  };
  expect(range(true, {{{0, 0}, {0, 0}, {5, 6}}}), 5, 6);               // two elements
  expect(range(false, {{{0, 1}, {1, 2}, {0, 3}}}), 130, 5 * 130 + 3);  // sixteen elements
  expect(range(true, {{{0, 0}, {0, 0}, {5, 30}}}), 0, 63);             // a block
  expect(range(true, {{{1, 1}, {2, 2}, {70, 129}}}), 5 * 130 + 64, 5 * 130 + 129);
  expect(range(true, {{{-9, -5}, {-1, 0}, {500, 900}}}), 129, 129);  // clamped
  constexpr double kLeast = -2147483648.0, kMost = 2147483647.0;
  expect(range(false, {{{0, 0}, {0, 0}, {5, 30}}}), kLeast, kMost);  // no pre-pass
  expect(range(true, {{{0, 1}, {0, 0}, {5, 30}}}), kLeast, kMost);   // two rows
}

TEST(TensorRanges, ANaNSpoilsItsRange) {
  expr::TensorValues tensor{.sizes = {256}, .values = std::vector<double>(256, 1.0)};
  tensor.values[70] = std::numeric_limits<double>::quiet_NaN();
  const expr::TensorRanges ranges(expr::TensorType::kFloat32, tensor, true);
  const expr::IntInterval wide[] = {{0, 255}}, clean[] = {{128, 255}};
  EXPECT_TRUE(std::isnan(ranges.range(wide).lo));
  EXPECT_EQ(ranges.range(clean).hi, 1);
}

// The limits stand in the kernels' template too.
TEST(TensorRanges, ShareTheKernelsLimits) {
  std::ifstream in("templates/tile/ranges.cuh");
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_NE(text.str().find(
                "constexpr int kMaxRangeCells = " + std::to_string(expr::kMaxRangeCells) + ";"),
            std::string::npos);
  EXPECT_NE(text.str().find(
                "constexpr int kMaxRangeBlocks = " + std::to_string(expr::kMaxRangeBlocks) + ";"),
            std::string::npos);
}

TEST(Cells, MergeTiles) {
  const MaskPicture picture = paint(spec_with("mask: causal\n"), request_of(8, 8, 2, 2));
  const CellGrid same = scale_down(picture, 10, 10);
  EXPECT_EQ(same.rows, 4);
  EXPECT_EQ(same.tiles_per_row, 1);
  const CellGrid half = scale_down(picture, 2, 3);
  EXPECT_EQ(half.rows, 2);
  EXPECT_EQ(half.columns, 2);
  EXPECT_EQ(half.at(0, 0), (Cell{TileClass::kPartial, (0.75 + 0 + 1 + 0.75) / 4}));
  EXPECT_EQ(half.at(0, 1), (Cell{TileClass::kSkip, 0}));
  EXPECT_EQ(half.at(1, 0), (Cell{TileClass::kFull, 1}));
}

}  // namespace
}  // namespace attune
