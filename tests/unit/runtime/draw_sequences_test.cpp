// Made-up problems have the sequences that are asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "generator/spec/draw_lengths.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

using testing::ElementsAre;

AttentionSpec spec_of(Layout layout, std::string_view lengths) {
  AttentionSpec spec{.name = "t", .head_dim_qk = 8, .head_dim_v = 8, .layout = layout};
  spec.lengths = parse_lengths(lengths).value();
  return spec;
}

std::vector<std::int64_t> keys_of(const HostProblem& problem) {
  std::vector<std::int64_t> keys;
  for (int b = 0; b < problem.shape.batch; ++b) keys.push_back(problem.sequences.kv_len(b));
  return keys;
}

TEST(DrawnSequences, HaveTheLengthsThatAreSaid) {
  for (const Layout layout : {Layout::kThd, Layout::kPaged}) {
    for (const char* lengths : {"equal", "uniform(0.3, 1)", "skewed(0.6)", "300, 7, 0, 93"}) {
      const AttentionSpec spec = spec_of(layout, lengths);
      const ProblemShape shape{.batch = 4, .heads = 2, .kv_heads = 1, .q_len = 8, .kv_len = 400};
      const HostProblem problem = random_problem(spec, shape, 5);
      std::mt19937_64 random;
      auto expected = key_lengths(spec, shape, random);
      auto keys = keys_of(problem);
      if (spec.lengths.kind != LengthsKind::kGiven) {
        std::ranges::sort(expected);
        std::ranges::sort(keys);
      }
      EXPECT_TRUE(std::ranges::equal(keys, expected)) << to_string(layout) << ": " << lengths;
      EXPECT_THAT(problem.sequences.cu_q, ElementsAre(0, 2, 4, 6, 8)) << "a few of each";
    }
  }
}

TEST(DrawnSequences, DealManyQueriesAsKeys) {
  const ProblemShape square{.batch = 3, .heads = 1, .kv_heads = 1, .q_len = 400, .kv_len = 400};
  const HostProblem same = random_problem(spec_of(Layout::kThd, "100, 200, 100"), square, 5);
  EXPECT_THAT(same.sequences.cu_q, ElementsAre(0, 100, 300, 400));
  EXPECT_THAT(same.sequences.cu_kv, ElementsAre(0, 100, 300, 400));
  const ProblemShape chunks{.batch = 3, .heads = 1, .kv_heads = 1, .q_len = 200, .kv_len = 400};
  const HostProblem packed = random_problem(spec_of(Layout::kThd, "100, 200, 100"), chunks, 5);
  EXPECT_THAT(packed.sequences.cu_q, ElementsAre(0, 50, 150, 200));
  const HostProblem paged = random_problem(spec_of(Layout::kPaged, "400, 400, 0"), chunks, 5);
  EXPECT_THAT(paged.sequences.cu_q, ElementsAre(0, 100, 200, 200));
}

}  // namespace
}  // namespace attune
