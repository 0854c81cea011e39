// Brings global memory into L2 ahead of its copies. sm_90 and later.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// `bytes` from `from` on, both multiples of 16.
ATT_FN void prefetch_to_l2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace att
