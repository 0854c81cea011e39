// The kernel in front of one that cuts packed sequences' items in pieces of keys: it zeroes the
// counters of pieces, and lists the items where CTAs do not find them for themselves. The kernel
// behind it may have begun by then: it waits before its first counter.
#pragma once

#include "templates/tile/item_list.cuh"
#include "templates/tile/launch_in_front.cuh"

ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::ItemTables tables;
  att::begin_launch_in_front(params);
  if (att::may_cut_listed(params.heads, params.q_len)) {
#pragma unroll 1
    for (int i = att::thread_index(); i < att::kKeyCounters; i += att::kItemThreads)
      params.pieces.arrivals[i] = 0;
  }
  const bool found = att::finds_tiles(params.heads, params.q_len, params.batch, att::kItemQueries);
  if (!att::plan::kFindsItems || !found) att::list_items<att::QueryItems>(params, tables);
}
