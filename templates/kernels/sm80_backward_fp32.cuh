// Attention backward in fp32 on mma.sync: the sm80 family's kernels with tf32 operands.
#pragma once

#include "templates/tile/operands_tf32.cuh"

namespace att {
static_assert(spec::kDType == DType::f32);
}  // namespace att

#include "templates/kernels/sm80_backward.cuh"
