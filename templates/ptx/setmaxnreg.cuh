// setmaxnreg: warpgroups hand registers to one another. All four warps of a warpgroup execute it,
// the kernel must bear __launch_bounds__(threads, 1), and counts are multiples of 8.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

template <int kRegisters>
ATT_FN void registers_release_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
ATT_FN void registers_acquire_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace att
