#include "generator/expr/derivative.hpp"

#include <cmath>
#include <limits>

#include "generator/expr/build.hpp"
#include "tests/unit/expr/fixture.hpp"

namespace attune::expr {
namespace {

std::string slope_in_score(std::string_view text) {
  return print(derivative(parsed(text), make_variable(Variable::kScore)), test_environment());
}

TEST(Derivative, InTheScore) {
  struct Row {
    std::string_view score, slope;
  };
  constexpr Row kRows[] = {
      {"score", "1.0"},
      {"score + slope[h] * (kv_idx - q_idx)", "1.0"},
      {"slope[h] * kv_idx", "0.0"},
      {"0.25 * score - 3 * score", "-2.75"},
      {"score - score", "0.0"},
      {"score / 4", "0.25"},
      {"score / cap", "1.0 / cap"},
      {"score * score", "score * 2.0"},
      {"score * exp(score)", "exp(score) + exp(score) * score"},
      {"1 / score", "-(1.0 / score) / score"},
      {"exp(-score)", "-exp(-score)"},
      {"exp2(score)", "exp2(score) * 0.6931472"},
      {"log(score)", "1.0 / score"},
      {"sqrt(score)", "0.5 / sqrt(score)"},
      {"sigmoid(score)", "sigmoid(score) * (1.0 - sigmoid(score))"},
      {"1 / (1 + exp(-score))", "1 / (1 + exp(-score)) * (1 - 1 / (1 + exp(-score)))"},
      {"1 / (exp2(2 * score) + 1)",
       "1 / (exp2(2 * score) + 1) * (1 - 1 / (exp2(2 * score) + 1)) * -1.3862944"},
      {"softplus(2 * score)", "sigmoid(2 * score) * 2.0"},
      {"sin(score)", "cos(score)"},
      {"cos(score)", "-sin(score)"},
      {"erf(score)", "exp(-(score * score)) * 1.1283792"},
      {"pow(score, 1.5)", "sqrt(score) * 1.5"},
      {"pow(cap, score)", "pow(cap, score) * log(cap) if cap > 0 else 0.0"},
      {"pow(score, cap)", "0.0 if cap == 0 else cap * pow(score, cap - 1)"},
      // The constants of a softcap are gone, also where they are known at launch only.
      {"50 * tanh(score / 50)", "1.0 - tanh(score / 50.0) * tanh(score / 50.0)"},
      {"cap * tanh(score / cap)", "1.0 - tanh(score / cap) * tanh(score / cap)"},
      {"2 * cap * tanh((score + slope[h]) / cap)",
       "(1.0 - tanh((score + slope[h]) / cap) * tanh((score + slope[h]) / cap)) * (2.0 * cap) / "
       "cap"},
      {"abs(score)", "1.0 if score > 0.0 else -1.0 if score < 0.0 else 0.0"},
      {"max(score, 0.5)", "1.0 if max(score, 0.5) == score else 0.0"},
      {"min(2 * score, 3 * score)", "2.0 if min(2.0 * score, 3.0 * score) == 2.0 * score else 3.0"},
      {"score if kv_idx < 4 else 2 * score", "1.0 if kv_idx < 4 else 2.0"},
      {"2 * (score if score > 1 else 1)", "2.0 if score > 1.0 else 0.0"},
      {"floor(score) + 2 * score", "2.0"},
      // An infinite slope does not reach what is flat.
      {"sqrt(max(score, 0))", "0.5 / sqrt(max(score, 0.0)) if max(score, 0.0) == score else 0.0"},
  };
  for (const Row& row : kRows) {
    const Expr expected = parsed(row.slope);
    ASSERT_NE(expected, nullptr);
    EXPECT_EQ(slope_in_score(row.score), print(expected, test_environment())) << row.score;
  }
}

double slope_at(std::string_view text, double score) {
  return value_at_score(derivative(parsed(text), make_variable(Variable::kScore)), score);
}

TEST(Derivative, AtKinks) {
  EXPECT_EQ(slope_at("abs(score)", 0), 0);
  EXPECT_EQ(slope_at("max(score, 0)", 0), 1);
  EXPECT_EQ(slope_at("max(0, score)", 0), 0);
  EXPECT_EQ(slope_at("min(3 * score, score)", 0), 3);
  EXPECT_EQ(slope_at("score if score < 0 else 2 * score", 0), 2);
}

TEST(Derivative, AtTheEndsOfTheNumbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double score : {1e4, -1e4, 3e38, -3e38, kInfinity, -kInfinity}) {
    EXPECT_EQ(slope_at("30 * tanh(score / 30)", score), 0) << score;
    EXPECT_EQ(slope_at("cap * tanh(score / cap)", score), 0) << score;
    EXPECT_EQ(slope_at("sigmoid(score)", score), 0) << score;
    EXPECT_EQ(slope_at("1 / (1 + exp(-2 * score))", score), 0) << score;
  }
  EXPECT_EQ(slope_at("sqrt(score)", 0), kInfinity);
  EXPECT_EQ(slope_at("sqrt(max(score, 0))", -1), 0);
  EXPECT_EQ(slope_at("sqrt(score if score > 0 else 0) * 3 + max(score, 0)", -1), 0);
  EXPECT_EQ(slope_at("log(score) if score > 0 else -4", 0), 0);
  EXPECT_EQ(slope_at("1e-30 * (1e-30 * score)", 1), slope_at("1e-30 * 1e-30 * score", 1));
}

// What two look-ups of one tensor, and one of another, each contribute.
TEST(Derivative, InLookUps) {
  const Environment environment = {
      .scalars = {},
      .tensors = {{.name = "bias", .dims = {{.dim = Dim::kHeads}, {.number = 32}}, .grad = true},
                  {.name = "slope", .dims = {{.dim = Dim::kHeads}}, .grad = true},
                  {.name = "fixed", .dims = {{.dim = Dim::kHeads}}}}};
  const auto look_ups = [&](std::string_view text) {
    const auto score = parse(text, environment, Role::kScore, {});
    EXPECT_TRUE(score.ok()) << render(score.error());
    std::string result;
    for (const LookUpDerivative& d : look_up_derivatives(*score, environment))
      result += print(d.look_up, environment) + ": " + print(d.partial, environment) + "; ";
    return result;
  };
  EXPECT_EQ(look_ups("score + fixed[h]"), "");
  EXPECT_EQ(look_ups("score + bias[h, 3]"), "bias[h, 3]: 1.0; ");
  EXPECT_EQ(look_ups("score - slope[h] * (q_idx - kv_idx)"), "slope[h]: -float(q_idx - kv_idx); ");
  EXPECT_EQ(look_ups("slope[h] * score + bias[h, 1] + slope[h] * fixed[h]"),
            "slope[h]: score + fixed[h]; bias[h, 1]: 1.0; ");
  EXPECT_EQ(look_ups("score + bias[h, 1] * bias[h, 2]"),
            "bias[h, 1]: bias[h, 2]; bias[h, 2]: bias[h, 1]; ");
  EXPECT_EQ(look_ups("score + slope[h] if bias[h, 0] > 1 else score"),
            "slope[h]: 1.0 if bias[h, 0] > 1.0 else 0.0; ");
  EXPECT_EQ(look_ups("score + slope[h] - slope[h]"), "");
}

}  // namespace
}  // namespace attune::expr
