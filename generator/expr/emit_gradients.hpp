// Derivatives -> the functions that only a backward kernel's head has.
#pragma once

#include <string>

#include "generator/expr/emit_functions.hpp"

namespace attune::expr {

// Definitions of score_grad, score_with_grad, score_core_with_grad, the gradients of look-ups in
// score and sink, and what is known of them, as templates/kernels/backward_head.cuh shows them, for
// the place behind emit_functions(). Ends in a newline. Thread-safe.
std::string emit_gradients(const HeadExpressions& expressions, const Environment& environment);

}  // namespace attune::expr
