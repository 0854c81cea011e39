// What an expression changes by with the score, and with the elements of tensors that learn.
#pragma once

#include <vector>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// factor * d expression / d wrt, simplified; the literal 0 where nothing depends on it. `wrt` is
// the variable kScore or a look-up of a float32 tensor, which stands for every equal look-up; the
// expression is a float32. Parts of the expression that the derivative needs are nodes of the
// expression itself, so that an emitter which prints both computes them once.
//
// Of each piece of a piecewise expression: comparisons, conditions, floor and int32 arithmetic
// count as constant. Where pieces meet, min and max are their first argument if it equals the
// result, abs has slope 0 at 0, `x if c else y` goes by c. At poles it is IEEE's: sqrt has an
// infinite slope at 0, unless what it is applied to is flat there. Thread-safe.
Expr derivative(const Expr& expression, const Expr& wrt, double factor = 1);

// Distinct look-ups of tensors with `grad`, in the order of the text. Of a null expression, none.
std::vector<Expr> grad_look_ups(const Expr& expression, const Environment& environment);

// One of them, and d expression / d that element.
struct LookUpDerivative {
  Expr look_up, partial;
};
// Those whose derivative is not the literal 0. Thread-safe.
std::vector<LookUpDerivative> look_up_derivatives(const Expr& expression,
                                                  const Environment& environment);

}  // namespace attune::expr
