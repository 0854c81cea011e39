// The last launch of a backward pass that learns: adds up, in a fixed order, what the others left
// in the workspace. A CTA takes a head, or as many as there are query heads to a K/V head.
#pragma once

#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/learned_totals.cuh"

#if ATT_LEARNS
ATT_KERNEL __launch_bounds__(att::kTotalThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _learned)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  __shared__ float shared[att::kTotalThreads];
  att::add_up_learned(p, att::shared_address(shared));
}
#endif
