#include "tests/property/expr/noise.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "generator/expr/arithmetic.hpp"

namespace attune::expr {
namespace {

// Whether what a condition compares is so near to each other that an inexact computation of it may
// decide otherwise.
bool may_flip(const Expr& condition, const Point& at, const Precision& precision) {
  const auto& args = condition->args;
  if (args.size() == 2 && args[0]->type == Type::kFloat32) {
    const double by = noise(args[0], at, precision) + noise(args[1], at, precision);
    return by > 0 && std::abs(evaluate(args[0], at) - evaluate(args[1], at)) <= by;
  }
  return std::ranges::any_of(args, [&](const Expr& arg) {
    return arg->type == Type::kBool && may_flip(arg, at, precision);
  });
}

double noise_of_select(const Expr& e, const Point& at, const Precision& precision) {
  const bool first = evaluate(e->args[0], at) != 0;
  const double chosen = noise(e->args[first ? 1 : 2], at, precision);
  if (!may_flip(e->args[0], at, precision)) return chosen;
  return std::max(chosen, noise(e->args[first ? 2 : 1], at, precision)) +
         std::abs(evaluate(e->args[1], at) - evaluate(e->args[2], at));
}

}  // namespace

double noise(const Expr& e, const Point& at, const Precision& precision) {
  const double value = evaluate(e, at);
  if (e->op == Op::kFloat) return precision.literal * std::abs(value);
  if (e->type != Type::kFloat32 || e->args.empty() || e->op == Op::kLoad || e->op == Op::kToFloat)
    return 0;
  if (e->op == Op::kSelect) return noise_of_select(e, at, precision);
  const bool is_wave = e->op == Op::kSin || e->op == Op::kCos;
  // Their error is absolute.
  const double size = is_wave || e->op == Op::kSoftplus ? 1 : 0;
  double total = precision.operation * std::max(std::abs(value), size);
  std::vector<double> args;
  for (const Expr& arg : e->args) args.push_back(evaluate(arg, at));
  for (std::size_t i = 0; i < args.size(); ++i) {
    const double by = noise(e->args[i], at, precision);
    if (is_wave) {  // a step of a whole period would show nothing
      total += std::min(by, 2.0);
      continue;
    }
    double worst = 0;
    for (const double step : {-by, by}) {
      std::vector<double> moved = args;
      moved[i] += step;
      const double there = args.size() == 1
                               ? apply_unary(e->op, Type::kFloat32, moved[0])
                               : apply_binary(e->op, Type::kFloat32, moved[0], moved[1]);
      worst = std::max(worst, std::abs(there - value));
    }
    total += worst;
  }
  return total;
}

}  // namespace attune::expr
