// The pre-pass' kernel: all pairs of all tensors whose ranges classify tiles, O(tensor) once a
// launch. The head's make_range_pair(params, pair) makes one of them, false when there are not so
// many.
#pragma once

#include "templates/cpu/launch.h"
#include "templates/tile/block_ranges.cuh"
#include "templates/tile/launch_in_front.cuh"
#include "templates/work_items.h"

#if ATT_DEVICE_CODE
ATT_KERNEL ATT_JOIN(ATT_KERNEL_NAME, _ranges)(ATT_GRID_CONSTANT att::ForwardParams params) {
  // The list of packed sequences comes between this and the main launch, and does so itself.
  if constexpr (!att::spec::kIsPacked) att::begin_launch_in_front(params);
  att::make_range_pair(params, static_cast<long long>(att::block_index()) * att::kRangePairsOfCta +
                                   att::thread_index() / 32);
}
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _ranges_work)(const att::ForwardParams*,
                                                        att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _ranges)(const att::ForwardParams* params, int item,
                                                   void*) {
  const long long first = static_cast<long long>(item) * att::kRangePairsOfCpuItem;
  for (int i = 0; i < att::kRangePairsOfCpuItem; ++i) {
    if (!att::make_range_pair(*params, first + i)) return;
  }
}
#endif
