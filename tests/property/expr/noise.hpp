// How exactly an expression can be computed.
#pragma once

#include "generator/expr/evaluator.hpp"

namespace attune::expr {

// Relative errors: of float literals, and of what every operation gives.
struct Precision {
  double literal = 0, operation = 0x1p-52;
};

// How far a float32 expression may be off at a point, to first order. Where a condition may turn
// out otherwise, by as much as that makes.
double noise(const Expr& e, const Point& at, const Precision& precision);

}  // namespace attune::expr
