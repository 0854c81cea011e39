// Where an expression takes a query to stand among the keys: at q_idx (aligned to the start), or at
// q_idx + kv_len - q_len (aligned to the end).
#pragma once

#include <optional>
#include <span>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// Parts that relate queries to keys: by a comparison, a difference, or a look-up along the keys.
struct Alignment {
  std::optional<SourceSpan> start, end;  // the first part of each kind
};
Alignment alignment_of(std::span<const Expr> expressions, const Environment& environment);

}  // namespace attune::expr
