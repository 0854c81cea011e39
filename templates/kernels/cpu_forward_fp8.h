// Forward attention on a CPU core over K and V of fp8: the cpu family's kernel, whose tiles of them
// become fp32 as they are brought together.
#pragma once

#include "templates/cpu/fp8_rows.h"

namespace att {
static_assert(spec::kKvDType == DType::f8_e4m3);
}  // namespace att

#include "templates/kernels/cpu_forward.h"
