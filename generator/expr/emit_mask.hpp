// mask(), in parts: what a row's elements share, what a column's do, and the rest.
#pragma once

#include <string>

#include "generator/expr/emit_value.hpp"

namespace attune::expr {

// MaskRow, mask_row, MaskColumn, mask_column, mask_at and mask, as templates/kernels/head.cuh shows
// them. A kernel that takes a tile's elements together calls the first two once a row and once a
// column, so that the compiler does not meet each look-up in every element.
std::string mask_functions(const Expr& mask, const Environment& environment, Products products);

}  // namespace attune::expr
