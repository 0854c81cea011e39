#include "generator/expr/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/checker.hpp"
#include "generator/expr/masks.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/syntax.hpp"

namespace attune::expr {
namespace {

// Nodes of one expression's tree after definitions are expanded, shared ones counted at each use.
constexpr std::int64_t kMaxNodes = 8192;
// Depth of that tree.
constexpr int kMaxTypedDepth = 1024;

}  // namespace

std::string_view article(Type type) { return type == Type::kInt32 ? "an" : "a"; }

std::string described(const Expr& e) {
  return fmt::format("{} {}", article(e->type), to_string(e->type));
}

Result<Expr> Checker::whole() {
  ATT_TRY(const std::unique_ptr<Syntax> syntax, parse_syntax(text_, origin_));
  const Scope scope{.environment = environment_, .visible_definitions = mask_definitions().size()};
  ATT_TRY(Expr tree, check(*syntax, scope));
  if (role_ == Role::kMask) {
    if (tree->type != Type::kBool)
      return fail(syntax->range, scope, "expr-wrong-result-type",
                  fmt::format("a mask is a bool, this is {}", described(tree)),
                  "compare it with something");
    return tree;
  }
  const std::string_view what = role_ == Role::kScore ? "a score" : "a sink";
  if (tree->type == Type::kBool)
    return fail(syntax->range, scope, "expr-wrong-result-type",
                fmt::format("{} is a float32, this is a bool", what),
                "write `x if condition else y`");
  return to_float(tree);
}

Error Checker::fail(TextRange range, const Scope& scope, std::string id, std::string message,
                    std::string hint) const {
  if (scope.definition != nullptr) {
    range = scope.call_site;
    hint = fmt::format("inside the definition of `{}`{}{}", scope.definition->name,
                       hint.empty() ? "" : "; ", hint);
  }
  return error_at(text_, origin_, range, std::move(id), std::move(message), std::move(hint));
}

SourceSpan Checker::span_of(TextRange range, const Scope& scope) const {
  return to_span(text_, origin_, scope.definition ? scope.call_site : range);
}

Result<Expr> Checker::check(const Syntax& syntax, const Scope& scope) {
  // What is written out and folded away again is in no tree, and takes time and memory all the
  // same.
  constexpr std::int64_t kMostChecks = 1 << 15;
  if (++checks_ > kMostChecks)
    return fail({syntax.range.begin, syntax.range.begin + 1}, scope, "expr-too-large",
                fmt::format("definitions and reductions are written out to more than {} operations",
                            kMostChecks));
  ATT_TRY(Expr made, check_node(syntax, scope));
  const Extent extent = extent_of(made);
  if (extent.nodes > kMaxNodes || extent.depth > kMaxTypedDepth)
    return fail({syntax.range.begin, syntax.range.begin + 1}, scope, "expr-too-large",
                fmt::format("the expression has more than {} operations or {} levels once "
                            "definitions and reductions are expanded",
                            kMaxNodes, kMaxTypedDepth));
  return made;
}

Result<Expr> Checker::check_node(const Syntax& syntax, const Scope& scope) {
  switch (syntax.kind) {
    case SyntaxKind::kInteger:
      if (syntax.integer > 2147483647)
        return fail(syntax.range, scope, "expr-number-out-of-range",
                    fmt::format("`{}` does not fit int32", syntax.integer));
      return make_int(syntax.integer, span_of(syntax.range, scope));
    case SyntaxKind::kReal:
      return make_float(syntax.real, span_of(syntax.range, scope));
    case SyntaxKind::kBool:
      return make_bool(syntax.integer != 0, span_of(syntax.range, scope));
    case SyntaxKind::kName:
      return check_name(syntax, scope);
    case SyntaxKind::kCall:
      return check_call(syntax, scope);
    case SyntaxKind::kIndex:
      return check_look_up(syntax, scope);
    case SyntaxKind::kUnary:
      return check_unary(syntax, scope);
    case SyntaxKind::kBinary:
      return check_binary(syntax, scope);
    case SyntaxKind::kChain:
      return check_chain(syntax, scope);
    case SyntaxKind::kLet:
      return check_let(syntax, scope);
    case SyntaxKind::kSelect:
      break;
  }
  return check_select(syntax, scope);
}

Result<Expr> Checker::check_let(const Syntax& syntax, const Scope& scope) {
  ATT_CHECK(check_new_name(syntax, scope));
  Local local = {.name = syntax.name, .outer = scope.locals};
  ATT_TRY(local.value, check(*syntax.children[0], scope));
  Scope inner = scope;
  inner.locals = &local;
  return check(*syntax.children[1], inner);
}

Status Checker::check_new_name(const Syntax& syntax, const Scope& scope) const {
  const std::string_view owner = scope.owner_of(syntax.name);
  if (owner.empty()) return ok_status();
  return fail(syntax.name_range, scope, "expr-name-taken",
              fmt::format("`{}` is {} already", syntax.name, owner), "choose another name");
}

Checker::Extent Checker::extent_of(const Expr& e) {
  if (e->args.empty()) return {};
  const auto known = extents_.find(e);
  if (known != extents_.end()) return known->second;
  Extent extent;
  for (const Expr& arg : e->args) {
    const Extent inner = extent_of(arg);
    extent.nodes = std::min(extent.nodes + inner.nodes, kMaxNodes + 1);
    extent.depth = std::max(extent.depth, inner.depth + 1);
  }
  extents_.emplace(e, extent);
  return extent;
}

Result<Expr> parse(std::string_view text, const Environment& environment, Role role,
                   const SourceOrigin& origin) {
  return Checker(text, environment, role, origin).whole();
}

}  // namespace attune::expr
