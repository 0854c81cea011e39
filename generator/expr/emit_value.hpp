// One expression as straight-line C++: what mask, score and sink are made of.
#pragma once

#include <string>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// The body of a function that returns the expression's value: declarations of what is used more
// than once or loaded from memory, then `return ...;`. Names in scope: c (Context), s (the scaled
// product), q_idx, kv_idx. Each line is indented by two.
std::string emit_value(const Expr& expression, const Environment& environment);

// Literals that read back exactly.
std::string int_literal(std::int64_t value);
std::string float_literal(double value);

}  // namespace attune::expr
