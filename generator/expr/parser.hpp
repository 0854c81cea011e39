// Text -> typed tree. See docs/language.md for the grammar.
#pragma once

#include <string>
#include <string_view>

#include "generator/expr/ast.hpp"
#include "generator/support/result.hpp"

namespace attune::expr {

// Where an expression's text stands in its file, so that errors point there.
struct SourceOrigin {
  std::string file;
  int line = 1;
  int column = 1;
  int continuation_column = 1;  // column of the first character of every further line
  std::string_view whole_file;  // for the line above the caret; empty: the expression itself
};

enum class Role {
  kMask,   // bool; may not use `score`
  kScore,  // float32; may use everything
  kSink,   // float32; only b, h, h_kv, q_len, kv_len, scalars and tensors
};

// Parses, expands named masks, checks types and index bounds, folds constants. Never crashes:
// size and nesting are limited. Thread-safe.
Result<Expr> parse(std::string_view text, const Environment& environment, Role role,
                   const SourceOrigin& origin);

// Canonical text: parses back to an equal tree; equal trees print equally.
std::string print(const Expr& expression, const Environment& environment);

}  // namespace attune::expr
