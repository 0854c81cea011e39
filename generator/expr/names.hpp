// The words of the language.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "generator/expr/ast.hpp"

namespace attune::expr {

struct VariableName {
  std::string_view name;
  Variable variable;
};
std::span<const VariableName> variable_names();

struct FunctionName {
  std::string_view name;
  Op op;
  int arguments;
};
std::span<const FunctionName> function_names();

// `any(i, n, x)`. No reserved words: only a call means them.
struct ReductionName {
  std::string_view name;
  Op op;
  int operands;
};
std::span<const ReductionName> reduction_names();

std::string_view to_string(Variable variable);
std::string_view to_string(Type type);
// `+`, `floor`, `and`, ...: how the operator is written; empty for leaves and kSelect.
std::string_view spelling(Op op);

}  // namespace attune::expr
