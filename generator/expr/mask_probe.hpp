// Whether a mask is ever true, and ever false, found by looking.
#pragma once

#include "generator/expr/ast.hpp"

namespace attune::expr {

struct MaskProbe {
  bool live = false, dead = false;  // some position was
};
// Looks at positions that tell: both ends, the diagonals of either alignment, the neighbourhood of
// every constant, at lengths from 1 to the longest, with several kinds of scalars and tensors.
// What it saw is there; what it did not see is missing in all likelihood, which is no proof.
// Deterministic; at most a few tens of milliseconds.
MaskProbe probe_mask(const Expr& mask, const Environment& environment);

}  // namespace attune::expr
