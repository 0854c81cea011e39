// What must hold of any expression that the parser accepts, and of any error it gives; the fuzz
// targets share it.
#pragma once

#include <string>
#include <string_view>

#include "generator/expr/ast.hpp"
#include "generator/expr/parser.hpp"
#include "generator/support/error.hpp"

namespace attune {

// Each returns nothing when all is well, else what is not.

// The error is the input's fault, names `file` and points into `bytes`, the file's text.
std::string check_error(const Error& error, std::string_view bytes, std::string_view file);
// The canonical text parses back to itself. A null expression is well.
std::string check_round_trip(const expr::Expr& expression, const expr::Environment& environment,
                             expr::Role role);
// Evaluation does not crash, and what the interval analysis says of a box is so at its every point.
std::string check_meaning(const expr::Expr& expression, const expr::Environment& environment,
                          expr::Role role);

}  // namespace attune
