// The same for a backward pass, whose launches take tiles of keys and tiles of queries: a list of
// each.
#pragma once

#include "templates/cpu/launch.h"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/tile/item_list.cuh"

namespace att {

struct KeyItems {
  static constexpr int kRows = kItemKeys;
  static ATT_MEMBER int all_rows(const PackedParams& p) { return p.kv_len; }
  static ATT_MEMBER int rows(const Sequence& sequence) { return sequence.kv_len; }
  static ATT_MEMBER SequenceItem* list(const PackedParams& p) {
    return static_cast<const PagedParams&>(p).key_items;
  }
  static constexpr int kWalkedTile = kItemQueries;
  static ATT_MEMBER int walked_rows(const Sequence& sequence) { return sequence.q_len; }
  static ATT_MEMBER QBounds walked_rows(const Context& c, int begin, int end) {
    return q_bounds(c, begin, end);
  }
};

}  // namespace att

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
