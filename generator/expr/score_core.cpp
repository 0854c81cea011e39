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
  return is_normal_float(x.multiplier) && (x.offset == 0 || is_normal_float(x.offset));
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

// The argument around which `e` has a constant, or a curve with such ends.
std::optional<std::size_t> inner_argument(const Expr& e) {
  switch (e->op) {
    case Op::kNegate:
    case Op::kTanh:
    case Op::kSigmoid:
      return 0;
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
      if (is_constant(e->args[0])) return 1;
      break;
    case Op::kDivide:
      break;
    default:
      return std::nullopt;
  }
  return is_constant(e->args[1]) ? std::optional<std::size_t>(0) : std::nullopt;
}

// `e` of an inner argument that is x.
Linear applied(const Expr& e, std::size_t inner, Linear x) {
  if (e->op == Op::kNegate) return scaled(std::move(x), -1);
  if (e->op == Op::kTanh || e->op == Op::kSigmoid) {
    const double height = e->op == Op::kTanh ? 2 : 1;
    const Linear power = scaled(std::move(x), -height * std::numbers::log2e);
    if (!can_be_written(power)) return {nullptr, 0};
    return {falling_logistic(power), height, 1 - height};
  }
  const double constant = constant_value(e->args[1 - inner]);
  if (e->op == Op::kMultiply) return scaled(std::move(x), constant);
  if (e->op == Op::kDivide) return scaled(std::move(x), 1 / constant);
  const bool subtracts = e->op == Op::kSubtract;
  if (subtracts && inner == 1) x = scaled(std::move(x), -1);
  x.offset += subtracts && inner == 0 ? -constant : constant;
  return x;
}

// What stays of `e`, a float32 that depends on the score, when operators with constants are taken
// from outside.
Linear peel(const Expr& e, double scale) {
  if (e->op == Op::kVariable) return {e, scale, 0};
  const auto inner = inner_argument(e);
  if (!inner) return {with_rewritten_arguments(e, scale)};
  const Linear x = peel(e->args[*inner], scale);
  Linear whole = applied(e, *inner, x);
  if (can_be_written(whole)) return whole;
  auto node = std::make_shared<Node>(*e);
  node->args[*inner] = written(x);
  return {std::move(node)};
}

}  // namespace

ScoreCore score_core(const Expr& score, float scale) {
  if (!depends_on(score, Variable::kScore)) return {score, 1, 0};
  const Linear x = peel(score, scale);
  // Beside a large constant a score is rounded, which is part of what it means.
  constexpr double kLargest = 1 << 20;
  if (x.multiplier <= 0 || x.multiplier > kLargest || std::abs(x.offset) > kLargest) {
    return {written(x), 1, 0};
  }
  return {x.core, static_cast<float>(x.multiplier), static_cast<float>(x.offset)};
}

std::optional<ScoreLogistic> score_logistic(const Expr& score, float scale) {
  Expr e = score_core(score, scale).core;
  const auto take = [&e](Op op, std::size_t constant_at) -> std::optional<double> {
    if (e->op != op || !is_constant(e->args[constant_at])) return std::nullopt;
    const double constant = constant_value(e->args[constant_at]);
    e = Expr(e->args[1 - constant_at]);
    return constant;
  };
  if (take(Op::kDivide, 0) != 1 || take(Op::kAdd, 0) != 1 || e->op != Op::kExp2)
    return std::nullopt;
  e = Expr(e->args[0]);
  ScoreLogistic found = {1, 0};
  if (const auto shift = take(Op::kAdd, 1)) found.shift = static_cast<float>(*shift);
  if (const auto step = take(Op::kMultiply, 1)) found.step = static_cast<float>(*step);
  if (e->op != Op::kVariable || e->variable != Variable::kScore) return std::nullopt;
  return found;
}

}  // namespace attune::expr
