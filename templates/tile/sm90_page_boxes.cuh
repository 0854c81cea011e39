// Tiles of paged K and V by the tensor unit, whose map is of (column, row of the page, head, page):
// a box of rows that lie in one page for each lane.
#pragma once

#include "templates/page_table.h"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// Where the lane's box of a tile begins, as listed: nothing waits for it before it is used. K and V
// have the same. Of the tile of sequence b that begins at key k0; the host sees to it that there
// are no more than 32 boxes (kLeastPageBoxRows).
ATT_FN PagedKey look_up_box(const PageTable& table, int b, int kv_len, int k0) {
  const int first = thread_index() % 32 * page_box_rows(table.page_size, kTileKv);
  if (first >= kTileKv || k0 + first >= kv_len) return {-1, 0};
  return listed_key(table, b, k0 + first);
}

// The whole loader warp calls it.
template <int kSlabs>
ATT_FN void load_page_boxes(unsigned to, const TensorMap* map, unsigned barrier,
                            const PageTable& table, const PagedKey& listed, int h_kv) {
  const int lane = thread_index() % 32;
  if (lane == 0) mbarrier_arrive_expect(barrier, kSlabs * kKvSlabBytes);
  sync_warp();
  const int first = lane * page_box_rows(table.page_size, kTileKv);
  if (first >= kTileKv) return;
  // Outside of the cache where the box has no keys: it becomes zeros.
  const int page = checked_key(table, listed).page;
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    tma_load(to + slab * kKvSlabBytes + first * kRowBytes, map, barrier, slab * kSlabColumns,
             listed.row, h_kv, page, CacheHint::kEvictLast);
  }
}

}  // namespace sm90
}  // namespace att
