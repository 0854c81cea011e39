// The kernel that deals out the work of packed sequences, whose lengths only the device knows: a
// list of the query tiles of all sequences.
#pragma once

#include "templates/cpu/launch.h"
#include "templates/tile/item_list.cuh"
#include "templates/tile/launch_in_front.cuh"

#if ATT_DEVICE_CODE
ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::ItemTables tables;
  att::begin_launch_in_front(params);
  att::list_items<att::QueryItems>(params, tables);
}
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items_work)(const att::LaunchParams*,
                                                       att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items)(const att::LaunchParams* params, int, void*) {
  att::list_items<att::QueryItems>(*params);
}
#endif
