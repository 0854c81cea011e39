#include "generator/expr/score_line.hpp"

#include <algorithm>

#include "generator/expr/build.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/static_range.hpp"

namespace attune::expr {
namespace {

bool is_zero(const Expr& e) { return is_constant(e) && constant_value(e) == 0; }

Expr zero_of(Type type) { return type == Type::kInt32 ? make_int(0) : make_float(0); }

// a + b or a - b; adding a zero to a float is not without effect in make_binary's eyes.
Expr sum(Op op, Expr a, Expr b) {
  if (is_zero(b)) return a;
  if (is_zero(a)) return op == Op::kAdd ? b : make_unary(Op::kNegate, std::move(b));
  return make_binary(op, std::move(a), std::move(b));
}

// What `e` grows by with each key, where that is the same for all keys.
std::optional<Expr> step_of(const Expr& e) {
  if (!depends_on(e, Variable::kKvIdx)) return zero_of(e->type);
  if (e->type == Type::kInt32 && e->op != Op::kVariable && may_wrap(e)) return std::nullopt;
  switch (e->op) {
    case Op::kVariable:
      return make_int(1);
    case Op::kToFloat:
    case Op::kNegate: {
      const auto step = step_of(e->args[0]);
      if (!step) return std::nullopt;
      return make_unary(e->op, *step);
    }
    case Op::kAdd:
    case Op::kSubtract: {
      const auto a = step_of(e->args[0]), b = step_of(e->args[1]);
      if (!a || !b) return std::nullopt;
      return sum(e->op, *a, *b);
    }
    case Op::kMultiply:
    case Op::kDivide: {
      const bool left = depends_on(e->args[0], Variable::kKvIdx);
      if (left == depends_on(e->args[1], Variable::kKvIdx) || (!left && e->op == Op::kDivide))
        return std::nullopt;
      const auto step = step_of(e->args[left ? 0 : 1]);
      if (!step) return std::nullopt;
      return left ? make_binary(e->op, *step, e->args[1]) : make_binary(e->op, e->args[0], *step);
    }
    default:
      return std::nullopt;
  }
}

bool looks_up_by_query(const Expr& e) {
  const auto is_by_query = [](const Expr& index) { return depends_on(index, Variable::kQIdx); };
  if (e->op == Op::kLoad && e->type == Type::kFloat32 && std::ranges::any_of(e->args, is_by_query))
    return true;
  return std::ranges::any_of(e->args, looks_up_by_query);
}

// Whether a term of `e`, which depends on the key, is a number that a query looks up.
bool adds_number_of_query(const Expr& e) {
  if (!depends_on(e, Variable::kKvIdx)) return looks_up_by_query(e);
  const bool is_product = e->op == Op::kMultiply || e->op == Op::kDivide;
  return std::ranges::any_of(e->args, [&](const Expr& part) {
    return (!is_product || depends_on(part, Variable::kKvIdx)) && adds_number_of_query(part);
  });
}

}  // namespace

std::optional<Expr> score_bias(const Expr& e) {
  if (e->op == Op::kVariable && e->variable == Variable::kScore) return make_float(0);
  if (e->op != Op::kAdd && e->op != Op::kSubtract) return std::nullopt;
  const bool left = depends_on(e->args[0], Variable::kScore);
  if (left == depends_on(e->args[1], Variable::kScore)) return std::nullopt;
  if (!left && e->op == Op::kSubtract) return std::nullopt;
  const auto rest = score_bias(e->args[left ? 0 : 1]);
  if (!rest) return std::nullopt;
  return left ? sum(e->op, *rest, e->args[1]) : sum(e->op, e->args[0], *rest);
}

std::optional<ScoreLine> score_line(const Expr& score) {
  const auto bias = score_bias(score);
  if (!bias) return std::nullopt;
  const auto step = step_of(*bias);
  if (!step) return std::nullopt;
  if (depends_on(*bias, Variable::kKvIdx) && adds_number_of_query(*bias)) return std::nullopt;
  return ScoreLine{*bias, *step};
}

}  // namespace attune::expr
