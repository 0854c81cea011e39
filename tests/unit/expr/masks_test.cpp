// Pictures of the named masks: rows are queries, columns keys, # is live.
#include "generator/expr/masks.hpp"

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

std::string picture(std::string_view text, int q_len, int kv_len) {
  const Expr mask = parsed(text);
  if (!mask) return "";
  std::vector<TensorValues> tensors(3);
  tensors[0] = {{1, 8}, {0, 0, 0, 1, 1, 1, 1, 2}};
  tensors[1] = {{1}, {5}};
  tensors[2] = {{4, 4}, {1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1}};
  const double scalars[] = {4, 0, 0};
  Point point;
  point.q_len = q_len;
  point.kv_len = kv_len;
  point.scalars = scalars;
  point.tensors = tensors;
  std::string rows = "\n";
  for (point.q_idx = 0; point.q_idx < q_len; ++point.q_idx) {
    for (point.kv_idx = 0; point.kv_idx < kv_len; ++point.kv_idx)
      rows += evaluate(mask, point) != 0 ? '#' : '.';
    rows += '\n';
  }
  return rows;
}

TEST(NamedMasks, Pictures) {
  EXPECT_EQ(picture("causal", 4, 6), R"(
###...
####..
#####.
######
)");
  EXPECT_EQ(picture("causal", 4, 2), R"(
..
..
#.
##
)");
  EXPECT_EQ(picture("causal_top_left", 3, 5), R"(
#....
##...
###..
)");
  EXPECT_EQ(picture("sliding_window(2)", 4, 6), R"(
.##...
..##..
...##.
....##
)");
  EXPECT_EQ(picture("local(1, 2)", 4, 4), R"(
###.
####
.###
..##
)");
  EXPECT_EQ(picture("sink_window(2, 1)", 5, 5), R"(
#....
##...
###..
#.##.
#..##
)");
  EXPECT_EQ(picture("prefix_lm(3)", 5, 5), R"(
###..
###..
###..
####.
#####
)");
  EXPECT_EQ(picture("document(doc)", 8, 8), R"(
###.....
###.....
###.....
...####.
...####.
...####.
...####.
.......#
)");
  EXPECT_EQ(picture("dilated(2)", 5, 5), R"(
#....
.#...
#.#..
.#.#.
#.#.#
)");
  EXPECT_EQ(picture("chunked(3)", 7, 7), R"(
#......
##.....
###....
...#...
...##..
...###.
......#
)");
  EXPECT_EQ(picture("global_window(1, 1)", 5, 5), R"(
#####
###..
####.
#.###
#..##
)");
  EXPECT_EQ(picture("block_sparse(table, 2)", 8, 8), R"(
##....##
##....##
..##....
..##....
....##..
....##..
##....##
##....##
)");
  EXPECT_EQ(picture("window_2d(3, 3)", 9, 9), R"(
##.##....
######...
.##.##...
##.##.##.
#########
.##.##.##
...##.##.
...######
....##.##
)");
  EXPECT_EQ(picture("tree(table)", 4, 6), R"(
###..#
##.#..
##..#.
###..#
)");
}

// NATTEN's window begins at clamp(i - k / 2, 0, n - k) of each axis and is k long.
TEST(NamedMasks, NattenShiftsTheWindowAtTheBorder) {
  const Expr mask = parsed("natten_2d(7, 5)");
  ASSERT_TRUE(mask);
  const int width = 7, height = 6, k = 5;
  Point point;
  point.q_len = point.kv_len = width * height;
  for (point.q_idx = 0; point.q_idx < point.q_len; ++point.q_idx) {
    const int row = std::clamp(point.q_idx / width - k / 2, 0, height - k);
    const int column = std::clamp(point.q_idx % width - k / 2, 0, width - k);
    int live = 0;
    for (point.kv_idx = 0; point.kv_idx < point.kv_len; ++point.kv_idx) {
      const int y = point.kv_idx / width - row, x = point.kv_idx % width - column;
      const bool expected = y >= 0 && y < k && x >= 0 && x < k;
      EXPECT_EQ(evaluate(mask, point) != 0, expected) << point.q_idx << " " << point.kv_idx;
      live += expected;
    }
    EXPECT_EQ(live, k * k);
  }
}

TEST(NamedMasks, PaddingUsesLengths) {
  const Environment environment = {
      .scalars = {},
      .tensors = {{.name = "lengths", .type = TensorType::kInt32, .dims = {{.dim = Dim::kBatch}}}}};
  const auto mask = parse("padding(lengths)", environment, Role::kMask, {});
  ASSERT_TRUE(mask.ok()) << render(mask.error());
  EXPECT_EQ(print(*mask, environment), "kv_idx < lengths[b]");
}

TEST(NamedMasks, NamesAreUnique) {
  std::vector<std::string_view> names;
  for (const Definition& definition : mask_definitions()) {
    EXPECT_EQ(std::count(names.begin(), names.end(), definition.name), 0) << definition.name;
    names.push_back(definition.name);
  }
  EXPECT_GE(names.size(), 10u);
}

}  // namespace
}  // namespace attune::expr
