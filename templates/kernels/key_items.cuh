// The same for a backward pass whose last launch finds its rows itself: a list of tiles of keys.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/item_list.cuh"
#include "templates/tile/key_items.cuh"

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::PagedParams params) {
  __shared__ att::ItemTables tables;
  att::let_next_launch_start();
  att::list_items<att::KeyItems>(params, tables);
}
