// Tiles of paged K and V by the tensor unit, whose map is of (column, row of the page, head, page):
// a box of rows that lie in one page for each lane.
#pragma once

#include "templates/page_table.h"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// Of a tile, the lane's; K and V have the same.
struct PageBox {
  int rows;  // of every lane's box
  int page;  // outside of the cache where the box has no keys: it becomes zeros
  int row;   // of the page
};

// Of the tile of sequence b that begins at key k0. The host sees to it that there are no more than
// 32 boxes (kLeastPageBoxRows).
ATT_FN PageBox page_box(const PageTable& table, int b, int kv_len, int k0) {
  const int rows = page_box_rows(table.page_size, kTileKv);
  const int first = thread_index() % 32 * rows;
  PagedKey key = {-1, 0};
  if (first < kTileKv && k0 + first < kv_len) key = paged_key(table, b, k0 + first);
  return {rows, key.page < 0 ? table.pages : key.page, key.row};
}

// The whole loader warp calls it.
template <int kSlabs>
ATT_FN void load_page_boxes(unsigned to, const TensorMap* map, unsigned barrier, const PageBox& box,
                            int h_kv) {
  const int lane = thread_index() % 32;
  if (lane == 0) mbarrier_arrive_expect(barrier, kSlabs * kKvSlabBytes);
  sync_warp();
  if (lane * box.rows >= kTileKv) return;
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    tma_load(to + slab * kKvSlabBytes + lane * box.rows * kRowBytes, map, barrier,
             slab * kSlabColumns, box.row, h_kv, box.page, CacheHint::kEvictLast);
  }
}

}  // namespace sm90
}  // namespace att
