// Which rows of gradients a GPU's oracle is asked for.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "tuner/measure/backward_problems.hpp"

namespace attune {
namespace {

AttentionSpec spec_of_width(int width) {
  AttentionSpec spec{.dtype = DType::kBf16};
  spec.head_dim_qk = spec.head_dim_v = width;
  return spec;
}

TEST(RowsForDevice, AreAllOfWhatIsAffordable) {
  const ProblemShape shape{.batch = 2, .heads = 16, .kv_heads = 4, .q_len = 1000, .kv_len = 1200};
  const BackwardSample rows = rows_for_device(spec_of_width(128), shape, 1);
  EXPECT_EQ(rows.queries.size(), 2 * 16 * 1000);
  EXPECT_EQ(rows.keys.size(), 2 * 4 * 1200);
}

TEST(RowsForDevice, LeaveNoBlockOfALargeShapeOut) {
  const ProblemShape shape{.batch = 2, .heads = 16, .kv_heads = 4, .q_len = 16384, .kv_len = 16384};
  const BackwardSample rows = rows_for_device(spec_of_width(128), shape, 1);
  using Block = std::tuple<int, int, int>;
  std::set<Block> queries, keys;
  for (const Row& row : rows.queries) queries.insert({row.b, row.h, row.q_idx / 16});
  for (const KeyRow& row : rows.keys) keys.insert({row.b, row.h_kv, row.kv_idx / 16});
  EXPECT_EQ(queries.size(), 2 * 16 * 1024);
  EXPECT_EQ(keys.size(), 2 * 4 * 1024);
  // 2^30 pairs of each.
  EXPECT_LE(rows.queries.size(), std::size_t{1} << 16);
  EXPECT_LE(rows.keys.size(), std::size_t{1} << 14);
  const BackwardSample others = rows_for_device(spec_of_width(128), shape, 2);
  EXPECT_NE(rows.queries.front().q_idx + rows.queries[1].q_idx + rows.queries[2].q_idx,
            others.queries.front().q_idx + others.queries[1].q_idx + others.queries[2].q_idx);
}

TEST(RowsForDevice, AreFewerWhereThatIsStillMuch) {
  const ProblemShape shape{
      .batch = 1, .heads = 16, .kv_heads = 16, .q_len = 131072, .kv_len = 131072};
  const BackwardSample rows = rows_for_device(spec_of_width(64), shape, 1);
  EXPECT_EQ(rows.queries.size(), 16 * 131072 / 64);
  EXPECT_EQ(rows.keys.size(), 16 * 131072 / 64);
}

}  // namespace
}  // namespace attune
