#include "generator/expr/score_line.hpp"

#include "generator/expr/lowering.hpp"
#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

TEST(ScoreBias, IsWhatIsAdded) {
  for (const std::string_view text :
       {"score + slope[h] * kv_idx", "slope[h] - 2 + score", "score - slope[h] * 3 + kv_idx",
        "q_idx + (score - cap)", "score + (0.5 if q_idx > kv_idx else 0.25)"}) {
    const Expr score = parsed(text);
    const auto bias = score_bias(score);
    ASSERT_TRUE(bias) << text;
    EXPECT_FALSE(depends_on(*bias, Variable::kScore)) << text;
    for (const double s : {-3.0, 0.0, 2.5}) {
      EXPECT_DOUBLE_EQ(value_at_score(*bias, 99) + s, value_at_score(score, s)) << text;
    }
  }
}

// Some grow as s does all the same, at most places.
TEST(ScoreBias, IsNoneWhereTheScoreDoesMore) {
  for (const std::string_view text :
       {"slope[h] - score", "2 * score + 1", "score + (1 if score > 0 else 2)",
        "score if q_idx > 3 else score + 1", "score + 0 * score", "max(score, 1)"}) {
    EXPECT_FALSE(score_bias(parsed(text))) << text;
  }
}

// A query's own number may be of any size; with slopes, or of all keys alike, it may not matter.
TEST(ScoreLine, IsNoneBesideANumberOfTheQuery) {
  for (const std::string_view text :
       {"score + slope[h] * (kv_idx - q_idx)", "score + 0.5 * kv_idx - 3 + slope[h]",
        "score + slope[q_idx]", "score + slope[q_idx] * (kv_idx - q_idx)"}) {
    EXPECT_TRUE(score_line(parsed(text))) << text;
  }
  for (const std::string_view text :
       {"score + slope[h] * (kv_idx - q_idx) + slope[q_idx]", "slope[q_pos] + score - 0.5 * kv_idx",
        "score + 2.0 * (kv_idx - 0.5 * slope[q_idx])"}) {
    EXPECT_FALSE(score_line(parsed(text))) << text;
  }
}

}  // namespace
}  // namespace attune::expr
