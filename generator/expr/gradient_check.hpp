// Whether a spec's expressions can be trained as they are declared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// Of tensors with `grad` in one expression: a kernel has code for each.
constexpr std::size_t kMaxGradLookUps = 16;

struct GradientProblem {
  std::string message, hint;
  SourceSpan span;       // of the expression that is in the way
  int unread_slot = -1;  // of a tensor that no expression reads: there is no span then
};

// The first of: more look-ups than kMaxGradLookUps; a tensor with `grad` whose elements change no
// score and no sink (it is read in the mask, an index, a condition or under a floor only, or not at
// all); and, if `has_backward`, a score that uses `score` but is flat in it. Any expression may be
// null. Thread-safe.
std::optional<GradientProblem> gradient_problem(const Expr& mask, const Expr& score,
                                                const Expr& sink, const Environment& environment,
                                                bool has_backward);

}  // namespace attune::expr
