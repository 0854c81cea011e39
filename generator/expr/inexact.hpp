// How far a kernel's fp32 evaluation of an expression may be from its meaning.
#pragma once

#include "generator/expr/evaluator.hpp"

namespace attune::expr {

struct Inexact {
  double value = 0;  // as evaluate() gives it
  double error = 0;  // no fp32 evaluation is farther away; infinite where nothing can be said
};

// Running error analysis: every float operation adds its rounding, or the error that a GPU's
// special-function unit has, to what its operands' errors become. Where a comparison or floor may
// go either way both ways count. `score_error` is that of `point.score`. Thread-safe.
Inexact evaluate_inexact(const Expr& expression, const Point& point, double score_error = 0);

}  // namespace attune::expr
