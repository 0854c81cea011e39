// The kernel in front of one whose CTAs deal packed sequences' keys out among themselves
// (templates/tile/stretches.cuh): no piece has arrived yet. The main launch starts beside it and
// waits for it where the first of its pieces is done.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/dealt_sequence.cuh"
#include "templates/work_items.h"

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  att::let_next_launch_start();
  att::zero_arrivals<att::kMostPieces>(params);
}
