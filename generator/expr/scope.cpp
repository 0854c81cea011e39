#include "generator/expr/scope.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/expr/names.hpp"
#include "generator/expr/parser.hpp"

namespace attune::expr {
namespace {

template <typename Declaration>
int find_slot(const std::vector<Declaration>& declarations, std::string_view name) {
  const auto found = std::ranges::find(declarations, name, &Declaration::name);
  return found == declarations.end() ? -1 : static_cast<int>(found - declarations.begin());
}

}  // namespace

const Binding* Scope::find_parameter(std::string_view name) const {
  if (definition == nullptr) return nullptr;
  const int index = find_slot(definition->parameters, name);
  return index < 0 ? nullptr : &parameters[static_cast<std::size_t>(index)];
}

const Definition* Scope::find_definition(std::string_view name) const {
  const auto visible = mask_definitions().first(visible_definitions);
  const auto found = std::ranges::find(visible, name, &Definition::name);
  return found == visible.end() ? nullptr : &*found;
}

const Local* Scope::find_local(std::string_view name) const {
  const Local* local = locals;
  while (local != nullptr && local->name != name) local = local->outer;
  return local;
}

int Scope::find_scalar(std::string_view name) const {
  return definition != nullptr ? -1 : find_slot(environment.scalars, name);
}

int Scope::find_tensor(std::string_view name) const {
  if (const Binding* parameter = find_parameter(name)) return parameter->tensor_slot;
  return definition != nullptr ? -1 : find_slot(environment.tensors, name);
}

std::string_view Scope::owner_of(std::string_view name) const {
  if (std::ranges::binary_search(reserved_names(), name)) return "a word of the language";
  if (find_local(name)) return "the name of a `let` around it";
  if (find_parameter(name)) return "a parameter";
  if (find_scalar(name) >= 0) return "a scalar";
  return find_tensor(name) >= 0 ? "a tensor" : "";
}

std::vector<std::string_view> Scope::names() const {
  std::vector<std::string_view> all;
  for (const Local* local = locals; local != nullptr; local = local->outer)
    all.push_back(local->name);
  if (definition != nullptr) {
    for (const DefinitionParameter& parameter : definition->parameters)
      all.push_back(parameter.name);
  } else {
    for (const ScalarDecl& scalar : environment.scalars) all.push_back(scalar.name);
    for (const TensorDecl& tensor : environment.tensors) all.push_back(tensor.name);
  }
  for (const VariableName& variable : variable_names()) all.push_back(variable.name);
  for (const FunctionName& function : function_names()) all.push_back(function.name);
  for (const ReductionName& reduction : reduction_names()) all.push_back(reduction.name);
  for (const Definition& visible : mask_definitions().first(visible_definitions))
    all.push_back(visible.name);
  return all;
}

std::span<const std::string_view> reserved_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all = {"and",    "or",    "not",  "if",     "else", "let",
                                         "in",     "def",   "true", "false",  "True", "False",
                                         "tensor", "int32", "bool", "float32"};
    for (const VariableName& variable : variable_names()) all.push_back(variable.name);
    for (const FunctionName& function : function_names()) all.push_back(function.name);
    for (const Definition& definition : mask_definitions()) all.push_back(definition.name);
    std::ranges::sort(all);
    return all;
  }();
  return names;
}

bool is_function(std::string_view name) {
  const auto functions = function_names();
  return std::ranges::find(functions, name, &FunctionName::name) != functions.end();
}

Type value_type(ParameterType type) {
  return type == ParameterType::kInt32     ? Type::kInt32
         : type == ParameterType::kFloat32 ? Type::kFloat32
                                           : Type::kBool;
}

std::string signature(const Definition& definition) {
  std::string text = fmt::format("`{}", definition.name);
  for (std::size_t i = 0; i < definition.parameters.size(); ++i) {
    const DefinitionParameter& parameter = definition.parameters[i];
    text += fmt::format("{}{}: {}", i == 0 ? "(" : ", ", parameter.name,
                        parameter.type == ParameterType::kTensor
                            ? "tensor"
                            : to_string(value_type(parameter.type)));
  }
  return text + (definition.parameters.empty() ? "`" : ")`");
}

}  // namespace attune::expr
