#include "generator/expr/score_core.hpp"

#include <cmath>
#include <string>

#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

constexpr float kScale = 0.0625f;

struct Row {
  std::string_view score;
  float multiplier, offset;
};
constexpr Row kRows[] = {
    {"score", kScale, 0},
    {"50 * tanh(score / 50)", 100, -50},
    {"2 + 3 * tanh(1 - score / 4)", 6, -1},
    {"2 - 3 * tanh(score)", 1, 0},  // would fall
    {"sigmoid(2 * score) * 8 - 1", 8, -1},
    {"3 * (score * 2 - 1) / 4", 1.5f * kScale, -0.75f},
    {"1 - score", 1, 0},
    {"score * 0", 1, 0},
    {"score + slope[h] * kv_idx", 1, 0},
    {"cap * tanh(score / cap)", 1, 0},  // a launch-time cap is no constant
    {"5 * tanh(tanh(score) + score)", 10, -5},
    {"score if score > 0.5 else 2 * score", 1, 0},
    {"2 * (score if q_idx < 4 and score > 1 else exp(score / 2))", 2, 0},
    {"floor(score * 3) + 0.25 * score", 1, 0},
    {"score * 1e-30 * 1e-30", 1, 0},  // not a float
    {"tanh(score * 1e30) * 1e30 * 1e-30", 2, -1},
    {"score / limit", 1, 0},
    {"slope[h] * kv_idx", 1, 0},
    {"abs(score) * 1e30 * 1e-30", 1, 0},
    // Beside these the rest is rounded.
    {"score + 1e30", 1, 0},
    {"1e7 * sigmoid(score)", 1, 0},
};

TEST(ScoreCore, TakesTheConstantsAtTheEnds) {
  for (const Row& row : kRows) {
    const ScoreCore core = score_core(parsed(row.score), kScale);
    EXPECT_FLOAT_EQ(core.multiplier, row.multiplier) << row.score;
    EXPECT_FLOAT_EQ(core.offset, row.offset) << row.score;
  }
}

TEST(ScoreCore, IsTheScore) {
  for (const Row& row : kRows) {
    const Expr score = parsed(row.score);
    const ScoreCore core = score_core(score, kScale);
    for (const double product : {-900.0, -40.0, -3.0, -0.1, 0.0, 0.7, 17.0, 55.0, 1200.0}) {
      const double expected = value_at_score(score, product * double{kScale});
      const double found = core.multiplier * value_at_score(core.core, product) + core.offset;
      EXPECT_NEAR(found, expected, 1e-5 * (1 + std::abs(expected) + core.multiplier))
          << row.score << " of " << product;
    }
  }
}

struct LogisticRow {
  std::string_view score;
  bool is_logistic;
};
constexpr LogisticRow kLogisticRows[] = {
    {"50 * tanh(score / 50)", true},
    {"2 + 3 * tanh(1 - score / 4)", true},
    {"2 + 3 * tanh(score / 4 - 1)", true},
    {"sigmoid(2 * score) * 8 - 1", true},
    {"sigmoid(score)", true},
    {"score", false},
    {"cap * tanh(score / cap)", false},
    {"5 * tanh(tanh(score) + score)", false},
    {"5 * tanh(score) + slope[h]", false},
    {"5 * tanh(score + slope[h])", false},
    {"1 / (2 + exp2(score))", false},
};

TEST(ScoreLogistic, IsTheScoreOfACap) {
  for (const LogisticRow& row : kLogisticRows) {
    const Expr score = parsed(row.score);
    const auto found = score_logistic(score, kScale);
    ASSERT_EQ(found.has_value(), row.is_logistic) << row.score;
    if (!found) continue;
    const ScoreCore core = score_core(score, kScale);
    for (const double product : {-900.0, -40.0, -0.1, 0.0, 17.0, 1200.0}) {
      const double logistic = 1 / (1 + std::exp2(found->step * product + found->shift));
      EXPECT_NEAR(core.multiplier * logistic + core.offset,
                  value_at_score(score, product * double{kScale}), 1e-5 * core.multiplier)
          << row.score << " of " << product;
    }
  }
}

// Each argument is looked at once.
TEST(ScoreCore, TakesDeepTrees) {
  std::string text = "score";
  for (int i = 0; i < 48; ++i)
    text = i % 2 == 0 ? "min(" + text + ", 9)" : "(" + text + ") * 1e-30";
  const ScoreCore core = score_core(parsed(text), kScale);
  EXPECT_EQ(core.multiplier, 1e-30f);
}

TEST(ScoreCore, KeepsWhatHasNoBoundInBounds) {
  const ScoreCore core = score_core(parsed("50 * tanh(score / 50)"), 1);
  for (const double product : {INFINITY, -INFINITY}) {
    EXPECT_EQ(core.multiplier * value_at_score(core.core, product) + core.offset,
              std::copysign(50, product));
  }
}

}  // namespace
}  // namespace attune::expr
