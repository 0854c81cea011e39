// Reductions over the quad of lanes that share the rows of an mma or wgmma accumulator.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"

namespace att {

// All four lanes get the same bits.
ATT_FN float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  value += shuffle_xor(value, 2);
  return value;
}

ATT_FN float quad_max(float value) {
  value = math_max(value, shuffle_xor(value, 1));
  value = math_max(value, shuffle_xor(value, 2));
  return value;
}

}  // namespace att
