// The tensor pre-pass on the CPU: templates/kernels/block_ranges.cuh's result, computed by the
// host.
#pragma once

#include "generator/expr/ast.hpp"
#include "runtime/device/workspace.hpp"
#include "templates/params.h"

namespace attune {

// Writes (minimum, maximum) of every kRangeBlock elements of each row into tensor.block_ranges. NaN
// widens its block's range to everything.
void compute_block_ranges(const att::TensorArg& tensor, expr::TensorType type,
                          const RangeGeometry& geometry);

}  // namespace attune
