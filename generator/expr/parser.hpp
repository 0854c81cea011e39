// Text -> typed tree. See docs/language.md for the grammar.
#pragma once

#include <span>
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
  // Where each byte of the expression stands in whole_file, and one entry more for its end:
  // text.size() + 1 spans. Empty: line, column and continuation_column say. A YAML scalar needs it
  // when quoting, escapes or folding part the text from the file.
  std::span<const SourceSpan> positions;
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

// The names that mean something in every expression: keywords, variables, functions and named
// masks. A spec's scalars and tensors may not take them. Sorted.
std::span<const std::string_view> reserved_names();

// Canonical text: parses back to an equal tree; equal trees print equally.
std::string print(const Expr& expression, const Environment& environment);

}  // namespace attune::expr
