// Derivatives against central differences of the evaluator, away from kinks and poles.
#include "generator/expr/derivative.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "generator/expr/build.hpp"
#include "generator/expr/parser.hpp"
#include "tests/property/expr/noise.hpp"
#include "tests/property/expr/random_expression.hpp"
#include "tests/property/expr/world.hpp"

namespace attune::expr {
namespace {

constexpr double kFloatUlp = 0x1p-23;

// Which piece of a piecewise expression the point lies on.
void append_pieces(const Expr& e, const Point& at, std::vector<double>& pieces) {
  for (const Expr& arg : e->args) append_pieces(arg, at, pieces);
  if (e->type == Type::kInt32 || e->type == Type::kBool) pieces.push_back(evaluate(e, at));
  if (e->op == Op::kAbs) pieces.push_back(evaluate(e->args[0], at) > 0);
  if (e->op != Op::kMin && e->op != Op::kMax) return;
  const double value = evaluate(e, at);
  for (const Expr& arg : e->args) pieces.push_back(value == evaluate(arg, at));
}

std::vector<double> pieces_of(const Expr& e, const Point& at) {
  std::vector<double> pieces;
  append_pieces(e, at, pieces);
  return pieces;
}

struct Difference {
  double value, error;
};

// Of `e` when a value that is `x` moves; at(x) is the point then. Nothing near a kink or a pole.
std::optional<Difference> central_difference(const Expr& e, double x,
                                             const std::function<Point(double)>& at) {
  const double step = 1e-4 * std::max(1.0, std::abs(x));
  const auto pieces = pieces_of(e, at(x));
  const auto of_step = [&](double h) {
    for (const double there : {x - h, x + h})
      if (pieces_of(e, at(there)) != pieces) return std::nan("");
    return (evaluate(e, at(x + h)) - evaluate(e, at(x - h))) / (2 * h);
  };
  const double whole = of_step(step), half = of_step(step / 2);
  const double spread = std::abs(whole - half);
  if (!std::isfinite(spread)) return std::nullopt;
  const double rounding = 8 * noise(e, at(x), {}) / step;
  if (!std::isfinite(rounding)) return std::nullopt;
  return Difference{half + (half - whole) / 3, spread + rounding};
}

struct Count {
  int compared = 0, sharp = 0;
};

void compare(const Expr& e, double slope, double slope_noise, const Difference& difference,
             Count& count) {
  const double tolerance = difference.error + 4 * slope_noise + 1e-9 * std::abs(slope);
  RC_LOG() << print(e, random_environment()) << "\nslope " << slope << ", difference "
           << difference.value << " +- " << tolerance << '\n';
  RC_ASSERT(!(std::abs(slope - difference.value) > tolerance));
  ++count.compared;
  count.sharp += tolerance < 1e-3 * std::abs(slope);
}

void check_score(const Expr& e, const World& world, int q, int k, double x, Count& count) {
  const auto at = [&](double score) { return world.point(q, k, score); };
  const auto difference = central_difference(e, x, at);
  if (!difference) return;
  const Expr slope = derivative(e, make_variable(Variable::kScore));
  compare(e, evaluate(slope, at(x)), noise(slope, at(x), {.literal = kFloatUlp}), *difference,
          count);
}

void collect_real_loads(const Expr& e, std::vector<Expr>& loads) {
  if (e->op == Op::kLoad && e->type == Type::kFloat32 &&
      std::ranges::none_of(loads, [&](const Expr& other) { return equal(other, e); }))
    loads.push_back(e);
  for (const Expr& arg : e->args) collect_real_loads(arg, loads);
}

// Every element of `value` that is looked up at this point: the sum over its look-ups.
void check_look_ups(const Expr& e, World& world, int q, int k, Count& count) {
  std::vector<Expr> loads;
  collect_real_loads(e, loads);
  const auto element_of = [&](const Expr& load) {
    return static_cast<std::size_t>(look_up_offset(load, world.point(q, k, 0.75)));
  };
  for (const Expr& load : loads) {
    const std::size_t element = element_of(load);
    double& there = world.tensors[2].values[element];
    const double x = there;
    if (!std::isfinite(x)) continue;
    const auto at = [&](double value) {
      there = value;
      return world.point(q, k, 0.75);
    };
    const auto difference = central_difference(e, x, at);
    const Point point = at(x);
    if (!difference) continue;
    double slope = 0, slope_noise = 0;
    for (const Expr& other : loads) {
      if (element_of(other) != element) continue;
      const Expr partial = derivative(e, other);
      slope += evaluate(partial, point);
      slope_noise += noise(partial, point, {.literal = kFloatUlp});
    }
    compare(e, slope, slope_noise, *difference, count);
  }
}

TEST(Derivative, IsTheLimitOfDifferences) {
  Count in_score, in_look_ups;
  EXPECT_TRUE(rc::check([&] {
    const Tape expression = *any_tape(), data = *any_tape();
    const int depth = 1 + static_cast<int>(data[0] % 5);
    const Expr tree =
        rebuilt(RandomExpression(expression,
                                 {.score = true, .smooth = expression[1] % 2 == 0, .waves = false})
                    .real(depth));
    World world = random_world(data, 12);
    for (int i = 0; i < 6; ++i) {
      const auto draw = [&](int n, int below) {
        return static_cast<int>(data[static_cast<std::size_t>(10 + 3 * i + n)] %
                                static_cast<unsigned>(below));
      };
      const int q = draw(0, world.q_len), k = draw(1, world.kv_len);
      check_score(tree, world, q, k, draw(2, 4001) / 500.0 - 4, in_score);
      check_look_ups(tree, world, q, k, in_look_ups);
    }
  }));
  // Few are of random trees: 190 runs had 72 at least, and eight of them fewer than 100.
  EXPECT_GT(in_score.sharp, 30) << in_score.compared;
  EXPECT_GT(in_look_ups.sharp, 20) << in_look_ups.compared;
}

// What people write: every point is compared, and almost every one sharply.
TEST(Derivative, OfScoresInUse) {
  Environment environment = random_environment();
  const DimSize heads = {.dim = Dim::kHeads};
  environment.tensors.push_back({.name = "slope", .dims = {heads}, .grad = true});
  environment.tensors.push_back({.name = "t5", .dims = {heads, {.number = 32}}, .grad = true});
  std::vector<double> numbers;
  for (int i = 0; i < 128; ++i) numbers.push_back(std::sin(i * 1.7) * 2);
  World world = random_world(Tape(20, 77), 40);
  world.q_len = 40;
  world.kv_len = 40;
  world.tensors.push_back({{4}, {numbers.begin(), numbers.begin() + 4}});
  world.tensors.push_back({{4, 32}, numbers});
  const std::string distance = "abs(kv_idx - q_idx)";
  for (const std::string& text : {
           std::string("score - slope[h] * (q_idx - kv_idx)"),
           std::string("20 * tanh((score + slope[h]) / 20)"),
           std::string("x * tanh(score / x)"),
           "score + t5[h, (16 if kv_idx > q_idx else 0) + (" + distance + " if " + distance +
               " < 8 else min(15, 2 + floor(log2(" + distance + " * " + distance + " + 0.5))))]",
           std::string("score + t5[h, max(0, min(31, kv_idx - q_idx + 16))]"),
           std::string("max(score, 0.25 * score) * sigmoid(slope[h])"),
           std::string("sin(score * slope[h]) + cos(score / 3) * t5[h, 2]"),
           std::string("tan(score / 40) * 3 + erf(score / 4) * slope[h]"),
           std::string("gelu(score) + silu(score * slope[h]) - softplus(score - slope[h])"),
           std::string("pow(score * score + 1, 0.3 + slope[h]) + pow(score, 3)"),
           std::string("pow(2, slope[h] * score / 8) + pow(1.7, score / 8) - pow(x, slope[h])"),
           std::string("sqrt(score * score + 1) + t5[h, q_idx % 32] * t5[h, kv_idx % 32]"),
       }) {
    SCOPED_TRACE(text);
    const auto score = parse(text, environment, Role::kScore, {});
    ASSERT_TRUE(score.ok()) << render(score.error());
    const Expr in_score = derivative(*score, make_variable(Variable::kScore));
    const auto look_ups = look_up_derivatives(*score, environment);
    EXPECT_EQ(look_ups.empty(), text.find('[') == std::string::npos);
    for (int q = 0; q < world.q_len; q += 7) {
      for (int k = 0; k < world.kv_len; k += 3) {
        const double x = 0.37 * (q - k) + 0.011;
        const auto difference =
            central_difference(*score, x, [&](double s) { return world.point(q, k, s); });
        ASSERT_TRUE(difference);
        EXPECT_NEAR(evaluate(in_score, world.point(q, k, x)), difference->value, 1e-6);
        std::vector<std::vector<double>> gradient, expected;
        for (std::size_t slot = 5; slot < 7; ++slot) {
          std::vector<double>& values = world.tensors[slot].values;
          gradient.emplace_back(values.size());
          expected.emplace_back();
          for (double& value : values) {
            const double old = value;
            const auto moved = central_difference(*score, old, [&](double there) {
              value = there;
              return world.point(q, k, x);
            });
            value = old;
            ASSERT_TRUE(moved);
            expected.back().push_back(moved->value);
          }
        }
        const Point point = world.point(q, k, x);
        for (const LookUpDerivative& d : look_ups) {
          const std::int64_t element = look_up_offset(d.look_up, point);
          gradient[static_cast<std::size_t>(d.look_up->slot - 5)]
                  [static_cast<std::size_t>(element)] += evaluate(d.partial, point);
        }
        for (std::size_t i = 0; i < 2; ++i)
          for (std::size_t j = 0; j < gradient[i].size(); ++j)
            ASSERT_NEAR(gradient[i][j], expected[i][j], 1e-6) << q << ' ' << k << ' ' << j;
      }
    }
  }
}

}  // namespace
}  // namespace attune::expr
