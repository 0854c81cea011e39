// What types an operator takes, and which it brings to one.
#include <fmt/format.h>

#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/checker.hpp"
#include "generator/expr/foreign.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/static_range.hpp"
#include "generator/expr/syntax.hpp"

namespace attune::expr {

Expr Checker::to_float(const Expr& e) {
  return e->type == Type::kInt32 ? make_unary(Op::kToFloat, e, e->span) : e;
}

void Checker::promote(Expr& a, Expr& b) {
  if (a->type == b->type) return;
  a = to_float(a);
  b = to_float(b);
}

Result<Expr> Checker::check_number(const Syntax& syntax, const Scope& scope,
                                   std::string_view user) {
  ATT_TRY(Expr operand, check(syntax, scope));
  if (operand->type == Type::kBool)
    return fail(syntax.range, scope, "expr-type-mismatch",
                fmt::format("`{}` takes numbers, this is a bool", user),
                "write `x if condition else y`");
  return operand;
}

Result<Expr> Checker::check_bool(const Syntax& syntax, const Scope& scope, std::string_view user) {
  ATT_TRY(Expr operand, check(syntax, scope));
  if (operand->type != Type::kBool)
    return fail(syntax.range, scope, "expr-type-mismatch",
                fmt::format("`{}` takes bools, this is {}", user, described(operand)),
                "compare it with something");
  return operand;
}

Result<Expr> Checker::check_unary(const Syntax& syntax, const Scope& scope) {
  const Syntax& child = *syntax.children[0];
  const SourceSpan span = span_of(syntax.range, scope);
  if (syntax.op == Op::kNot) {
    ATT_TRY(Expr operand, check_bool(child, scope, "not"));
    return make_unary(Op::kNot, operand, span);
  }
  // 2147483648 is a number only behind a minus sign.
  if (child.kind == SyntaxKind::kInteger) return make_int(-child.integer, span);
  ATT_TRY(Expr operand, check_number(child, scope, "-"));
  return make_unary(Op::kNegate, operand, span);
}

Result<Expr> Checker::check_binary(const Syntax& syntax, const Scope& scope) {
  const Syntax &left_syntax = *syntax.children[0], &right_syntax = *syntax.children[1];
  const std::string_view symbol = spelling(syntax.op);
  const SourceSpan span = span_of(syntax.range, scope);
  if (syntax.op == Op::kAnd || syntax.op == Op::kOr) {
    ATT_TRY(Expr left, check_bool(left_syntax, scope, symbol));
    ATT_TRY(Expr right, check_bool(right_syntax, scope, symbol));
    return make_binary(syntax.op, left, right, span);
  }
  if (syntax.op >= Op::kShiftLeft && syntax.op <= Op::kBitXor) return check_bits(syntax, scope);
  ATT_TRY(Expr left, check_number(left_syntax, scope, symbol));
  ATT_TRY(Expr right, check_number(right_syntax, scope, symbol));
  if (syntax.op == Op::kFloorDivide || syntax.op == Op::kModulo) {
    for (const auto& [operand, where] :
         {std::pair{&left, &left_syntax}, std::pair{&right, &right_syntax}}) {
      if ((*operand)->type != Type::kInt32)
        return fail(where->range, scope, "expr-type-mismatch",
                    fmt::format("`{}` takes int32, this is a float32", symbol),
                    "write `floor(x / y)` or `floor(x)`");
    }
  }
  if (syntax.op == Op::kDivide) {
    left = to_float(left);
    right = to_float(right);
  }
  if (syntax.op == Op::kDivide || syntax.op == Op::kFloorDivide || syntax.op == Op::kModulo) {
    if (is_constant(right) && constant_value(right) == 0)
      return fail(right_syntax.range, scope, "expr-division-by-zero", "division by zero");
  }
  promote(left, right);
  return make_binary(syntax.op, left, right, span);
}

Result<Expr> Checker::check_bits(const Syntax& syntax, const Scope& scope) {
  const bool is_shift = syntax.op == Op::kShiftLeft || syntax.op == Op::kShiftRight;
  std::vector<Expr> operands;
  for (const auto& child : syntax.children) {
    ATT_TRY(Expr operand, check(*child, scope));
    if (operand->type == Type::kBool && !is_shift)
      return fail(child->range, scope, "expr-type-mismatch",
                  fmt::format("`{}` takes int32, this is a bool", spelling(syntax.op)),
                  fmt::format("write `{}` for booleans", word_for_bits(syntax.op)));
    if (operand->type != Type::kInt32)
      return fail(
          child->range, scope, "expr-type-mismatch",
          fmt::format("`{}` takes int32, this is {}", spelling(syntax.op), described(operand)),
          operand->type == Type::kFloat32 ? "write `floor(x)`" : "write `x if condition else y`");
    operands.push_back(std::move(operand));
  }
  if (const IntInterval bits = static_range(operands[1]); is_shift && (bits.hi < 0 || bits.lo > 31))
    return fail(syntax.children[1]->range, scope, "expr-shift-out-of-range",
                fmt::format("a shift by {}", bits.lo == bits.hi ? fmt::format("{}", bits.lo)
                                             : bits.hi < 0      ? "less than 0"
                                                                : "more than 31"),
                "an int32 is shifted by 0 to 31");
  return make_binary(syntax.op, operands[0], operands[1], span_of(syntax.range, scope));
}

Result<Expr> Checker::check_chain(const Syntax& syntax, const Scope& scope) {
  const SourceSpan span = span_of(syntax.range, scope);
  ATT_TRY(Expr left, check(*syntax.children[0], scope));
  Expr whole;
  for (std::size_t i = 0; i < syntax.ops.size(); ++i) {
    const Syntax& right_syntax = *syntax.children[i + 1];
    const std::string_view symbol = spelling(syntax.ops[i]);
    ATT_TRY(const Expr right, check(right_syntax, scope));
    const bool same = syntax.ops[i] == Op::kEqual || syntax.ops[i] == Op::kNotEqual;
    for (const auto& [operand, where] :
         {std::pair<const Expr&, const Syntax*>{left, syntax.children[i].get()},
          {right, &right_syntax}}) {
      if (operand->type != Type::kBool) continue;
      if (same && left->type == right->type) continue;
      if (same)
        return fail(where->range, scope, "expr-type-mismatch",
                    fmt::format("`{}` compares two numbers or two bools, this is a bool beside {}",
                                symbol, described(operand == left ? right : left)),
                    "write `x if condition else y`");
      return fail(where->range, scope, "expr-type-mismatch",
                  fmt::format("`{}` compares numbers, this is a bool", symbol),
                  "combine bools with `and`, `or`, `not`, `==` and `!=`");
    }
    Expr a = left, b = right;
    promote(a, b);
    Expr comparison = make_binary(syntax.ops[i], a, b, span);
    whole = whole ? make_binary(Op::kAnd, whole, comparison, span) : comparison;
    left = right;
  }
  return whole;
}

Result<Expr> Checker::check_select(const Syntax& syntax, const Scope& scope) {
  ATT_TRY(Expr condition, check_bool(*syntax.children[0], scope, "if"));
  ATT_TRY(Expr then, check(*syntax.children[1], scope));
  ATT_TRY(Expr otherwise, check(*syntax.children[2], scope));
  if ((then->type == Type::kBool) != (otherwise->type == Type::kBool))
    return fail(syntax.children[2]->range, scope, "expr-type-mismatch",
                fmt::format("the two values of `if ... else` are {} and {}", described(then),
                            described(otherwise)));
  promote(then, otherwise);
  return make_select(condition, then, otherwise, span_of(syntax.range, scope));
}

}  // namespace attune::expr
