// What names in an expression stand for: variables, scalars, tensors and their elements, functions,
// named masks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/checker.hpp"
#include "generator/expr/foreign.hpp"
#include "generator/expr/masks.hpp"
#include "generator/expr/names.hpp"
#include "generator/expr/static_range.hpp"
#include "generator/expr/syntax.hpp"
#include "generator/support/suggest.hpp"

namespace attune::expr {
namespace {

// The index among all tokens of one in the own sequence, which is clamped into that.
Expr token_of(Expr index, Dim dim) {
  const bool of_q = dim == Dim::kQLen;
  const bool is_position =
      index->op == Op::kVariable && index->variable == (of_q ? Variable::kQIdx : Variable::kKvIdx);
  if (!is_position) {
    const Expr length = make_variable(of_q ? Variable::kQLen : Variable::kKvLen);
    const Expr last = make_binary(Op::kSubtract, length, make_int(1));
    index = make_binary(Op::kMin, make_binary(Op::kMax, std::move(index), make_int(0)), last);
  }
  return make_binary(Op::kAdd, std::move(index),
                     make_variable(of_q ? Variable::kQFirst : Variable::kKvFirst));
}

// For a name that stands where only a tensor may.
std::string unknown_tensor_hint(std::string_view name, const Scope& scope) {
  std::vector<std::string_view> names = scope.names();
  std::erase_if(names, [&](std::string_view one) { return scope.find_tensor(one) < 0; });
  const std::string hint = did_you_mean(name, names);
  return !hint.empty()
             ? hint
             : fmt::format("declare it: `tensors: {{{}: {{dtype: ..., dims: [...]}}}}`", name);
}

}  // namespace

Result<Expr> Checker::check_name(const Syntax& syntax, const Scope& scope) {
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

Error Checker::tensor_without_index(const Syntax& syntax, const Scope& scope) const {
  return fail(syntax.range, scope, "expr-tensor-without-index",
              fmt::format("`{}` is a tensor and needs indices", syntax.name),
              fmt::format("write `{}[...]`", syntax.name));
}

Status Checker::check_allowed(Variable variable, const Syntax& syntax, const Scope& scope) const {
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

Error Checker::unknown(const Syntax& syntax, const Scope& scope) const {
  const bool called = syntax.kind == SyntaxKind::kCall;
  const bool indexed = syntax.kind == SyntaxKind::kIndex;
  std::string hint(foreign_word_hint(syntax.name));
  if (hint.empty() && indexed) hint = unknown_tensor_hint(syntax.name, scope);
  if (hint.empty()) hint = did_you_mean(syntax.name, scope.names());
  if (hint.empty() && !called)
    hint = fmt::format("declare it: `scalars: {{{}: 128}}`, or with the type `int` or `float`",
                       syntax.name);
  return fail(syntax.name_range, scope, called ? "expr-unknown-function" : "expr-unknown-name",
              fmt::format("unknown {} `{}`",
                          called    ? "function"
                          : indexed ? "tensor"
                                    : "name",
                          syntax.name),
              std::move(hint));
}

Result<Expr> Checker::check_call(const Syntax& syntax, const Scope& scope) {
  const auto functions = function_names();
  const auto function = std::ranges::find(functions, syntax.name, &FunctionName::name);
  if (function == functions.end()) {
    if (const Definition* definition = scope.find_definition(syntax.name))
      return expand(*definition, syntax, scope);
    const auto reductions = reduction_names();
    const auto reduction = std::ranges::find(reductions, syntax.name, &ReductionName::name);
    if (reduction != reductions.end()) return check_reduction(*reduction, syntax, scope);
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

Error Checker::wrong_count(const Syntax& syntax, const Scope& scope, std::size_t expected) const {
  return fail(syntax.range, scope, "expr-wrong-argument-count",
              fmt::format("`{}` takes {} argument{}, not {}", syntax.name, expected,
                          expected == 1 ? "" : "s", syntax.children.size()));
}

Result<Expr> Checker::expand(const Definition& definition, const Syntax& syntax,
                             const Scope& scope) {
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
      if (binding.tensor_slot < 0 && argument.kind == SyntaxKind::kName &&
          scope.owner_of(argument.name).empty())
        return fail(argument.range, scope, "expr-unknown-name",
                    fmt::format("unknown tensor `{}`", argument.name),
                    unknown_tensor_hint(argument.name, scope));
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

Result<Expr> Checker::check_look_up(const Syntax& syntax, const Scope& scope) {
  const int slot = scope.find_tensor(syntax.name);
  if (slot < 0) {
    const bool known = scope.find_local(syntax.name) || scope.find_parameter(syntax.name) ||
                       scope.find_definition(syntax.name) || is_function(syntax.name) ||
                       std::ranges::any_of(variable_names(),
                                           [&](const auto& v) { return v.name == syntax.name; }) ||
                       scope.find_scalar(syntax.name) >= 0;
    if (!known) return unknown(syntax, scope);
    return fail(syntax.name_range, scope, "expr-not-a-tensor",
                fmt::format("`{}` is not a tensor", syntax.name),
                scope.find_scalar(syntax.name) >= 0
                    ? fmt::format("it is a scalar: write `{}`", syntax.name)
                    : "");
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

}  // namespace attune::expr
