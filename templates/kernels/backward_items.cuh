// The same for a backward pass, whose launches take tiles of keys and tiles of queries: a list of
// each.
#pragma once

#include "templates/cpu/launch.h"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/item_list.cuh"
#include "templates/tile/key_items.cuh"

#if ATT_DEVICE_CODE
ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::PagedParams params) {
  __shared__ att::ItemTables tables;
  att::let_next_launch_start();
  att::list_items<att::KeyItems>(params, tables);
  att::sync_threads();
  att::list_items<att::QueryItems>(params, tables);
}
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items_work)(const att::PagedParams*,
                                                       att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items)(const att::PagedParams* params, int, void*) {
  att::list_items<att::KeyItems>(*params);
  att::list_items<att::QueryItems>(*params);
}
#endif
