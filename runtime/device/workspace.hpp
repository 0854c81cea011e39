// What a launch needs besides its arguments: the scheduler's counter and the pre-pass' block
// ranges. A workspace holds the counter, when the recipe needs it, in its first kCounterBytes; the
// ranges of the recipe's range_slots follow in that order. All functions are pure and allocate
// nothing.
#pragma once

#include <cstddef>

#include "generator/plan/plan.hpp"
#include "templates/params.h"

namespace attune {

constexpr std::size_t kCounterBytes = 16;  // one int, padded to what every part is aligned to

// The pre-pass' view of one tensor: [rows, ceil(length / kRangeBlock)] pairs of 4-byte values.
struct RangeGeometry {
  int rows = 1;    // product of all dims but the last
  int length = 1;  // of the last dim
  int pairs = 1;
  std::size_t bytes = 0;  // a multiple of 16
};
RangeGeometry range_geometry(const expr::TensorDecl& tensor, const ProblemShape& shape);

ProblemShape shape_of(const att::ForwardParams& params);

std::size_t workspace_bytes(const AttentionSpec& spec, const LaunchRecipe& recipe,
                            const ProblemShape& shape);

}  // namespace attune
