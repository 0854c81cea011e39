#include "generator/expr/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/foreign.hpp"
#include "generator/expr/masks.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/scope.hpp"
#include "generator/expr/static_range.hpp"
#include "generator/expr/syntax.hpp"
#include "generator/support/suggest.hpp"

namespace attune::expr {
namespace {

// Nodes of one expression's tree after definitions are expanded, shared ones counted at each use.
constexpr std::int64_t kMaxNodes = 8192;
// Depth of that tree.
constexpr int kMaxTypedDepth = 1024;

std::string_view article(Type type) { return type == Type::kInt32 ? "an" : "a"; }

std::string described(const Expr& e) {
  return fmt::format("{} {}", article(e->type), to_string(e->type));
}

class Checker {
 public:
  Checker(std::string_view text, const Environment& environment, Role role,
          const SourceOrigin& origin)
      : text_(text), environment_(environment), role_(role), origin_(origin) {}

  Result<Expr> whole() {
    ATT_TRY(const std::unique_ptr<Syntax> syntax, parse_syntax(text_, origin_));
    const Scope scope{.environment = environment_,
                      .visible_definitions = mask_definitions().size()};
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

 private:
  Error fail(TextRange range, const Scope& scope, std::string id, std::string message,
             std::string hint = {}) const {
    if (scope.definition != nullptr) {
      range = scope.call_site;
      hint = fmt::format("inside the definition of `{}`{}{}", scope.definition->name,
                         hint.empty() ? "" : "; ", hint);
    }
    return error_at(text_, origin_, range, std::move(id), std::move(message), std::move(hint));
  }

  SourceSpan span_of(TextRange range, const Scope& scope) const {
    return to_span(text_, origin_, scope.definition ? scope.call_site : range);
  }

  // Checks one level of the tree and the limits that expansion could break.
  Result<Expr> check(const Syntax& syntax, const Scope& scope) {
    ATT_TRY(Expr made, check_node(syntax, scope));
    const Extent extent = extent_of(made);
    if (extent.nodes > kMaxNodes || extent.depth > kMaxTypedDepth)
      return fail({syntax.range.begin, syntax.range.begin + 1}, scope, "expr-too-large",
                  fmt::format("the expression has more than {} operations or {} levels once "
                              "definitions are expanded",
                              kMaxNodes, kMaxTypedDepth));
    return made;
  }

  Result<Expr> check_node(const Syntax& syntax, const Scope& scope) {
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

  Result<Expr> check_let(const Syntax& syntax, const Scope& scope) {
    ATT_CHECK(check_new_name(syntax, scope));
    Local local = {.name = syntax.name, .outer = scope.locals};
    ATT_TRY(local.value, check(*syntax.children[0], scope));
    Scope inner = scope;
    inner.locals = &local;
    return check(*syntax.children[1], inner);
  }

  // A name stands for one thing wherever it is seen.
  Status check_new_name(const Syntax& syntax, const Scope& scope) const {
    const std::string_view owner = scope.owner_of(syntax.name);
    if (owner.empty()) return ok_status();
    return fail(syntax.name_range, scope, "expr-name-taken",
                fmt::format("`{}` is {} already", syntax.name, owner), "choose another name");
  }

  Result<Expr> check_name(const Syntax& syntax, const Scope& scope) {
    const SourceSpan span = span_of(syntax.range, scope);
    if (const Local* local = scope.find_local(syntax.name)) return local->value;
    if (const Binding* parameter = scope.find_parameter(syntax.name)) {
      if (parameter->value) return parameter->value;
      return tensor_without_index(syntax, scope);
    }
    for (const VariableName& variable : variable_names()) {
      if (variable.name != syntax.name) continue;
      ATT_CHECK(check_allowed(variable.variable, syntax, scope));
      return make_variable(variable.variable, span);
    }
    if (const int slot = scope.find_scalar(syntax.name); slot >= 0) {
      const ScalarDecl& scalar = environment_.scalars[static_cast<std::size_t>(slot)];
      if (!scalar.is_constant) return make_scalar(slot, scalar.type, span);
      switch (scalar.type) {
        case Type::kInt32:
          return make_int(static_cast<std::int64_t>(scalar.value), span);
        case Type::kBool:
          return make_bool(scalar.value != 0, span);
        case Type::kFloat32:
          return make_float(scalar.value, span);
      }
    }
    if (const int slot = scope.find_tensor(syntax.name); slot >= 0) {
      const TensorDecl& tensor = environment_.tensors[static_cast<std::size_t>(slot)];
      if (!tensor.dims.empty()) return tensor_without_index(syntax, scope);
      return make_load(slot, element_type(tensor.type), {}, 0, span);
    }
    if (const Definition* definition = scope.find_definition(syntax.name))
      return expand(*definition, syntax, scope);
    if (is_function(syntax.name))
      return fail(syntax.range, scope, "expr-function-without-arguments",
                  fmt::format("`{}` is a function", syntax.name),
                  fmt::format("write `{}(...)`", syntax.name));
    return unknown(syntax, scope);
  }

  Error tensor_without_index(const Syntax& syntax, const Scope& scope) const {
    return fail(syntax.range, scope, "expr-tensor-without-index",
                fmt::format("`{}` is a tensor and needs indices", syntax.name),
                fmt::format("write `{}[...]`", syntax.name));
  }

  Status check_allowed(Variable variable, const Syntax& syntax, const Scope& scope) const {
    if (role_ == Role::kMask && variable == Variable::kScore)
      return fail(syntax.range, scope, "expr-not-allowed-here", "a mask may not use `score`",
                  "a mask depends on positions, heads, scalars and tensors");
    const bool per_element =
        variable == Variable::kScore || variable == Variable::kQIdx || variable == Variable::kKvIdx;
    if (role_ == Role::kSink && per_element)
      return fail(syntax.range, scope, "expr-not-allowed-here",
                  fmt::format("a sink may not use `{}`", syntax.name),
                  "a sink depends on b, h, h_kv, q_len, kv_len, scalars and tensors");
    return ok_status();
  }

  Error unknown(const Syntax& syntax, const Scope& scope) const {
    const bool called = syntax.kind == SyntaxKind::kCall;
    std::string hint(foreign_word_hint(syntax.name));
    if (hint.empty()) hint = did_you_mean(syntax.name, scope.names());
    return fail(syntax.name_range, scope, called ? "expr-unknown-function" : "expr-unknown-name",
                fmt::format("unknown {} `{}`",
                            called                              ? "function"
                            : syntax.kind == SyntaxKind::kIndex ? "tensor"
                                                                : "name",
                            syntax.name),
                std::move(hint));
  }

  Result<Expr> check_call(const Syntax& syntax, const Scope& scope) {
    const auto functions = function_names();
    const auto function = std::ranges::find(functions, syntax.name, &FunctionName::name);
    if (function == functions.end()) {
      if (const Definition* definition = scope.find_definition(syntax.name))
        return expand(*definition, syntax, scope);
      if (scope.find_local(syntax.name))
        return fail(syntax.name_range, scope, "expr-not-a-function",
                    fmt::format("`{}` is a value, not a function", syntax.name));
      if (scope.find_tensor(syntax.name) >= 0)
        return fail(syntax.name_range, scope, "expr-not-a-function",
                    fmt::format("`{}` is a tensor, not a function", syntax.name),
                    fmt::format("write `{}[...]`", syntax.name));
      return unknown(syntax, scope);
    }
    if (static_cast<int>(syntax.children.size()) != function->arguments)
      return wrong_count(syntax, scope, static_cast<std::size_t>(function->arguments));
    const SourceSpan span = span_of(syntax.range, scope);
    ATT_TRY(Expr first, check_number(*syntax.children[0], scope, syntax.name));
    if (function->arguments == 2) {
      ATT_TRY(Expr second, check_number(*syntax.children[1], scope, syntax.name));
      if (function->op == Op::kPower) first = to_float(first);
      promote(first, second);
      return make_binary(function->op, first, second, span);
    }
    if (function->op == Op::kAbs) return make_unary(Op::kAbs, first, span);
    if (function->op == Op::kFloor && first->type == Type::kInt32) return first;
    first = to_float(first);
    return function->op == Op::kToFloat ? first : make_unary(function->op, first, span);
  }

  Error wrong_count(const Syntax& syntax, const Scope& scope, std::size_t expected) const {
    return fail(syntax.range, scope, "expr-wrong-argument-count",
                fmt::format("`{}` takes {} argument{}, not {}", syntax.name, expected,
                            expected == 1 ? "" : "s", syntax.children.size()));
  }

  // A named mask at work: its body with the arguments in place of the parameters.
  Result<Expr> expand(const Definition& definition, const Syntax& syntax, const Scope& scope) {
    if (syntax.children.size() != definition.parameters.size()) {
      Error error = wrong_count(syntax, scope, definition.parameters.size());
      if (error.hint.empty()) error.hint = "it is " + signature(definition);
      return error;
    }
    Scope inner{
        .environment = environment_,
        .definition = &definition,
        .visible_definitions = static_cast<std::size_t>(&definition - mask_definitions().data()),
        .call_site = scope.definition ? scope.call_site : syntax.range};
    for (std::size_t i = 0; i < syntax.children.size(); ++i) {
      const DefinitionParameter& parameter = definition.parameters[i];
      const Syntax& argument = *syntax.children[i];
      Binding binding;
      if (parameter.type == ParameterType::kTensor) {
        if (argument.kind == SyntaxKind::kName)
          binding.tensor_slot = scope.find_tensor(argument.name);
        if (binding.tensor_slot < 0)
          return fail(argument.range, scope, "expr-type-mismatch",
                      fmt::format("argument `{}` of `{}` is the name of a tensor", parameter.name,
                                  definition.name),
                      "it is " + signature(definition));
      } else {
        ATT_TRY(binding.value, check(argument, scope));
        if (parameter.type == ParameterType::kFloat32 && binding.value->type == Type::kInt32)
          binding.value = to_float(binding.value);
        if (binding.value->type != value_type(parameter.type))
          return fail(argument.range, scope, "expr-type-mismatch",
                      fmt::format("argument `{}` of `{}` is {} {}, this is {}", parameter.name,
                                  definition.name, article(value_type(parameter.type)),
                                  to_string(value_type(parameter.type)), described(binding.value)),
                      "it is " + signature(definition));
      }
      inner.parameters.push_back(std::move(binding));
    }
    return check(*definition.body, inner);
  }

  // The index among all tokens of one in the own sequence, which is clamped into that.
  static Expr token_of(Expr index, Dim dim) {
    const bool of_q = dim == Dim::kQLen;
    const bool is_position = index->op == Op::kVariable &&
                             index->variable == (of_q ? Variable::kQIdx : Variable::kKvIdx);
    if (!is_position) {
      const Expr length = make_variable(of_q ? Variable::kQLen : Variable::kKvLen);
      const Expr last = make_binary(Op::kSubtract, length, make_int(1));
      index = make_binary(Op::kMin, make_binary(Op::kMax, std::move(index), make_int(0)), last);
    }
    return make_binary(Op::kAdd, std::move(index),
                       make_variable(of_q ? Variable::kQFirst : Variable::kKvFirst));
  }

  Result<Expr> check_look_up(const Syntax& syntax, const Scope& scope) {
    const int slot = scope.find_tensor(syntax.name);
    if (slot < 0) {
      const bool known =
          scope.find_local(syntax.name) || scope.find_parameter(syntax.name) ||
          scope.find_definition(syntax.name) || is_function(syntax.name) ||
          std::ranges::any_of(variable_names(),
                              [&](const auto& v) { return v.name == syntax.name; }) ||
          scope.find_scalar(syntax.name) >= 0;
      if (!known) return unknown(syntax, scope);
      return fail(syntax.name_range, scope, "expr-not-a-tensor",
                  fmt::format("`{}` is not a tensor", syntax.name));
    }
    const TensorDecl& tensor = environment_.tensors[static_cast<std::size_t>(slot)];
    if (syntax.children.size() != tensor.dims.size())
      return fail(syntax.range, scope, "expr-wrong-index-count",
                  fmt::format("`{}` has {} dim{}, not {}", tensor.name, tensor.dims.size(),
                              tensor.dims.size() == 1 ? "" : "s", syntax.children.size()),
                  tensor.dims.empty() ? fmt::format("write `{}`", tensor.name) : "");
    std::vector<Expr> indices;
    std::uint32_t clamped = 0;
    for (std::size_t i = 0; i < syntax.children.size(); ++i) {
      const Syntax& child = *syntax.children[i];
      ATT_TRY(Expr index, check(child, scope));
      if (index->type != Type::kInt32)
        return fail(child.range, scope, "expr-type-mismatch",
                    fmt::format("an index is an int32, this is {}", described(index)),
                    index->type == Type::kFloat32 ? "write `floor(...)`" : "");
      switch (prove_index(index, tensor.dims[i])) {
        case IndexProof::kInside:
          break;
        case IndexProof::kUnknown:
          clamped |= 1u << i;
          break;
        case IndexProof::kOutside:
          return fail(
              child.range, scope, "expr-index-out-of-range",
              fmt::format("index {} of `{}` is always outside its dim", i, tensor.name),
              tensor.dims[i].dim == Dim::kNumber
                  ? fmt::format("the dim has {} elements, counted from 0", tensor.dims[i].number)
                  : "");
      }
      if (is_token_dim(environment_, tensor.dims[i])) {
        index = token_of(std::move(index), tensor.dims[i].dim);
        clamped |= 1u << i;
      }
      indices.push_back(std::move(index));
    }
    return make_load(slot, element_type(tensor.type), std::move(indices), clamped,
                     span_of(syntax.range, scope));
  }

  // An operand that must be int32 or float32.
  Result<Expr> check_number(const Syntax& syntax, const Scope& scope, std::string_view user) {
    ATT_TRY(Expr operand, check(syntax, scope));
    if (operand->type == Type::kBool)
      return fail(syntax.range, scope, "expr-type-mismatch",
                  fmt::format("`{}` takes numbers, this is a bool", user),
                  "write `x if condition else y`");
    return operand;
  }

  Result<Expr> check_bool(const Syntax& syntax, const Scope& scope, std::string_view user) {
    ATT_TRY(Expr operand, check(syntax, scope));
    if (operand->type != Type::kBool)
      return fail(syntax.range, scope, "expr-type-mismatch",
                  fmt::format("`{}` takes bools, this is {}", user, described(operand)),
                  "compare it with something");
    return operand;
  }

  static Expr to_float(const Expr& e) {
    return e->type == Type::kInt32 ? make_unary(Op::kToFloat, e, e->span) : e;
  }
  static void promote(Expr& a, Expr& b) {
    if (a->type == b->type) return;
    a = to_float(a);
    b = to_float(b);
  }

  Result<Expr> check_unary(const Syntax& syntax, const Scope& scope) {
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

  Result<Expr> check_binary(const Syntax& syntax, const Scope& scope) {
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

  Result<Expr> check_bits(const Syntax& syntax, const Scope& scope) {
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
    if (const IntInterval bits = static_range(operands[1]);
        is_shift && (bits.hi < 0 || bits.lo > 31))
      return fail(syntax.children[1]->range, scope, "expr-shift-out-of-range",
                  fmt::format("a shift by {}", bits.lo == bits.hi ? fmt::format("{}", bits.lo)
                                               : bits.hi < 0      ? "less than 0"
                                                                  : "more than 31"),
                  "an int32 is shifted by 0 to 31");
    return make_binary(syntax.op, operands[0], operands[1], span_of(syntax.range, scope));
  }

  // a < b <= c is a < b and b <= c.
  Result<Expr> check_chain(const Syntax& syntax, const Scope& scope) {
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
          return fail(
              where->range, scope, "expr-type-mismatch",
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

  Result<Expr> check_select(const Syntax& syntax, const Scope& scope) {
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

  struct Extent {
    std::int64_t nodes = 1;  // saturating
    int depth = 1;
  };
  // Children were measured when they were checked, so this goes a few levels deep at most.
  Extent extent_of(const Expr& e) {
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

  std::string_view text_;
  const Environment& environment_;
  Role role_;
  const SourceOrigin& origin_;
  std::unordered_map<Expr, Extent> extents_;
};

}  // namespace

Result<Expr> parse(std::string_view text, const Environment& environment, Role role,
                   const SourceOrigin& origin) {
  return Checker(text, environment, role, origin).whole();
}

}  // namespace attune::expr
