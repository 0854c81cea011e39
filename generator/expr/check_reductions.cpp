// any(i, n, x), all(...), sum(...) and dot(i, n, x, y): x, and y, for each i from 0 to n - 1. They
// are written out when the text is read, so nothing behind the parser knows of them.
#include <fmt/format.h>

#include <array>

#include "generator/expr/build.hpp"
#include "generator/expr/checker.hpp"
#include "generator/expr/names.hpp"

namespace attune::expr {
namespace {

constexpr std::int64_t kLargestCount = 128;

constexpr std::array<ReductionName, 4> kReductions = {
    {{"any", Op::kOr, 1}, {"all", Op::kAnd, 1}, {"sum", Op::kAdd, 1}, {"dot", Op::kAdd, 2}}};

}  // namespace

std::span<const ReductionName> reduction_names() { return kReductions; }

Result<Expr> Checker::check_reduction(const ReductionName& reduction, const Syntax& syntax,
                                      const Scope& scope) {
  const std::size_t expected = 2 + static_cast<std::size_t>(reduction.operands);
  const std::string form = fmt::format("`{}(i, n, {})`: i counts from 0 to n - 1", reduction.name,
                                       reduction.operands == 2 ? "x, y" : "x");
  if (syntax.children.size() != expected) {
    Error error = wrong_count(syntax, scope, expected);
    error.hint = form;
    return error;
  }
  const Syntax &counter = *syntax.children[0], &count_syntax = *syntax.children[1];
  if (counter.kind != SyntaxKind::kName)
    return fail(counter.range, scope, "expr-needs-name", "a name for the counter belongs here",
                form);
  ATT_CHECK(check_new_name(counter, scope));
  ATT_TRY(const Expr count, check(count_syntax, scope));
  if (count->op != Op::kInt || count->int_value < 1 || count->int_value > kLargestCount)
    return fail(count_syntax.range, scope, "expr-bad-count",
                fmt::format("`{}` counts to a number from 1 to {} that the spec has",
                            reduction.name, kLargestCount));
  const SourceSpan span = span_of(syntax.range, scope);
  Local local = {.name = counter.name, .value = {}, .outer = scope.locals};
  Scope inner = scope;
  inner.locals = &local;
  const auto operand = [&](std::size_t i) {
    const Syntax& child = *syntax.children[i];
    return reduction.op == Op::kAdd ? check_number(child, inner, reduction.name)
                                    : check_bool(child, inner, reduction.name);
  };
  Expr result;
  for (std::int64_t i = 0; i < count->int_value; ++i) {
    local.value = make_int(i, span_of(counter.range, scope));
    ATT_TRY(Expr term, operand(2));
    if (reduction.operands == 2) {
      ATT_TRY(Expr factor, operand(3));
      promote(term, factor);
      term = make_binary(Op::kMultiply, std::move(term), std::move(factor), span);
    }
    result = result ? make_binary(reduction.op, std::move(result), std::move(term), span) : term;
  }
  return result;
}

}  // namespace attune::expr
