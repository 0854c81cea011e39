// Attention forward for few queries on many keys of fp8: the decode family's kernel.
#pragma once

#include "templates/tile/decode_cache_fp8.cuh"

namespace att {
static_assert(spec::kKvDType == DType::f8_e4m3);
}  // namespace att

#include "templates/kernels/decode_forward.cuh"
