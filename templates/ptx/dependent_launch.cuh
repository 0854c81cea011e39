// A launch that starts while the one in front of it on the stream still runs. CUDA Programming
// Guide, "Programmatic Dependent Launch and Synchronization"; sm_90 and newer, nothing before.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Lets the next launch start, as soon as all CTAs have said so or ended.
ATT_FN void let_next_launch_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until all launches in front have ended and what they wrote can be read.
ATT_FN void wait_for_launches_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace att
