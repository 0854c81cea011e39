#include "generator/expr/score_core.hpp"

#include <cmath>
#include <numbers>
#include <optional>

#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"

namespace attune::expr {
namespace {

// multiplier * core + offset. Constants are folded as doubles.
struct Linear {
  Expr core;
  double multiplier = 1, offset = 0;
};

Linear peel(const Expr& e, double scale);

// A float that a compiler neither rounds to 0 nor to infinity.
bool is_sound(double value) { return std::isnormal(static_cast<float>(value)); }

Linear scaled(Linear x, double factor) {
  return {std::move(x.core), x.multiplier * factor, x.offset * factor};
}

Expr written(const Linear& x) {
  Expr e = x.core;
  if (x.multiplier != 1) e = make_binary(Op::kMultiply, e, make_float(x.multiplier));
  if (x.offset != 0) e = make_binary(Op::kAdd, e, make_float(x.offset));
  return e;
}

bool can_be_written(const Linear& x) {
  return is_sound(x.multiplier) && (x.offset == 0 || is_sound(x.offset));
}

// The same operator over arguments that were rewritten.
Expr with_rewritten_arguments(const Expr& e, double scale) {
  auto node = std::make_shared<Node>(*e);
  for (Expr& arg : node->args) {
    if (!depends_on(arg, Variable::kScore)) continue;
    arg = arg->type == Type::kFloat32 ? written(peel(arg, scale))
                                      : with_rewritten_arguments(arg, scale);
  }
  return node;
}

// 1 / (1 + exp2(x)).
Expr falling_logistic(const Linear& x) {
  return make_binary(Op::kDivide, make_float(1),
                     make_binary(Op::kAdd, make_float(1), make_unary(Op::kExp2, written(x))));
}

// What `e` is by an operator with a constant, or by a curve that has such ends.
std::optional<Linear> peeled(const Expr& e, double scale) {
  if (e->op == Op::kNegate) return scaled(peel(e->args[0], scale), -1);
  if (e->op == Op::kTanh || e->op == Op::kSigmoid) {
    const double inner = e->op == Op::kTanh ? 2 : 1;
    const Linear x = scaled(peel(e->args[0], scale), -inner * std::numbers::log2e);
    if (!can_be_written(x)) return std::nullopt;
    return Linear{falling_logistic(x), inner, 1 - inner};
  }
  if (e->args.size() != 2) return std::nullopt;
  const bool left = is_constant(e->args[0]);
  if (left == is_constant(e->args[1])) return std::nullopt;
  const double constant = constant_value(e->args[left ? 0 : 1]);
  Linear x = peel(e->args[left ? 1 : 0], scale);
  switch (e->op) {
    case Op::kMultiply:
      return scaled(std::move(x), constant);
    case Op::kDivide:
      if (left || constant == 0) return std::nullopt;
      return scaled(std::move(x), 1 / constant);
    case Op::kAdd:
      x.offset += constant;
      return x;
    case Op::kSubtract:
      if (left) x = scaled(std::move(x), -1);
      x.offset += left ? constant : -constant;
      return x;
    default:
      return std::nullopt;
  }
}

// What stays of `e`, a float32, when operators with constants are taken from outside.
Linear peel(const Expr& e, double scale) {
  if (e->op == Op::kVariable && e->variable == Variable::kScore) return {e, scale, 0};
  const auto linear = peeled(e, scale);
  if (linear && can_be_written(*linear)) return *linear;
  return {with_rewritten_arguments(e, scale)};
}

}  // namespace

ScoreCore score_core(const Expr& score, float scale) {
  const Linear x = peel(score, scale);
  if (x.multiplier <= 0) return {written(x), 1, 0};
  return {x.core, static_cast<float>(x.multiplier), static_cast<float>(x.offset)};
}

}  // namespace attune::expr
