// The names that an expression sees, and what each stands for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "generator/expr/ast.hpp"
#include "generator/expr/masks.hpp"
#include "generator/expr/syntax.hpp"

namespace attune::expr {

// What a parameter of a named mask stands for inside its definition.
struct Binding {
  Expr value;            // null for a tensor
  int tensor_slot = -1;  // of the environment
};

// What `let` gave a name, and what stands around it.
struct Local {
  std::string_view name;
  Expr value;
  const Local* outer = nullptr;
};

// In a definition: its parameters and the definitions above it; in the user's text: scalars,
// tensors and every definition.
struct Scope {
  const Environment& environment;
  const Definition* definition = nullptr;
  std::vector<Binding> parameters;  // as definition->parameters
  std::size_t visible_definitions = 0;
  TextRange call_site;            // in the user's text; errors inside a definition point there
  const Local* locals = nullptr;  // innermost first

  // Null when there is none of that name.
  const Binding* find_parameter(std::string_view name) const;
  const Definition* find_definition(std::string_view name) const;
  const Local* find_local(std::string_view name) const;
  // The scalar's slot; -1 when there is none of that name.
  int find_scalar(std::string_view name) const;
  // The slot of the tensor, by its own name or a parameter's; -1 when there is none.
  int find_tensor(std::string_view name) const;
  // "a scalar", "a word of the language", ...: what the name is already; empty when it is new.
  std::string_view owner_of(std::string_view name) const;
  // Every name there is, for suggestions.
  std::vector<std::string_view> names() const;
};

bool is_function(std::string_view name);

// The type of a parameter that is no tensor.
Type value_type(ParameterType type);
// "`sliding_window(n: int32)`"
std::string signature(const Definition& definition);

}  // namespace attune::expr
