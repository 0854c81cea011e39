// K and V in pages of any size: two warps copy them row by row (cp.async) to where the tensor unit
// would have put them, the one K, the other V. For pages that are too small for boxes of rows
// (templates/tile/sm90_page_boxes.cuh).
//
// A tile is given to the consumers when the copies of the tile behind it have been started, so that
// those of two are on their way, or at once where that one's place is not free yet.
#pragma once

#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_pipeline.cuh"

namespace att {
namespace sm90 {

// Of a tile, the pages that the lane looks up, of every 32nd row: as listed, so that nothing waits
// for them before they are used. No page: behind the last key.
constexpr int kRowsOfLane = (kTileKv + 31) / 32;
struct ListedRows {
  int page[kRowsOfLane];

  // Of sequence b's keys from k0 on.
  ATT_MEMBER void look_up(const PageTable& table, int b, int kv_len, int k0) {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int key = k0 + 32 * i + thread_index() % 32;
      page[i] = key < kv_len ? listed_key(table, b, key).page : -1;
    }
  }
};

// Starts the lane's copies of the rows, keys from k0 on, to the slabs at `to`. Eight lanes have a
// row's 64 columns. Rows that lie nowhere become zeros, as what lies behind the columns does.
template <int kDim>
ATT_FN void copy_rows(unsigned to, const void* tensor, const Strides& stride,
                      const PageTable& table, const ListedRows& rows, int k0, int h_kv) {
  constexpr long long kNowhere = -0x7fffffffffffffffll - 1;
  constexpr int kUnitColumns = 8, kUnits = kRowBytes / 16, kRowsOfCopy = 32 / kUnits;
  constexpr int kUsedUnits = whole_steps(kDim) / kUnitColumns;
  const int lane = thread_index() % 32;
  const int unit = lane % kUnits, row = lane / kUnits;
  const char* const column = static_cast<const char*>(tensor) + unit * 16;
  // The swizzle is that of eight rows.
  const unsigned even = swizzled(to, row, unit), odd = swizzled(to, row + kRowsOfCopy, unit);
#pragma unroll
  for (int i = 0; i < kRowsOfLane; ++i) {
    const int key = k0 + 32 * i + lane;
    const PagedKey own =
        checked_key(table, {rows.page[i], key - page_of_key(table, key) * table.page_size});
    const long long before = own.page < 0 ? kNowhere : 2 * key_offset(own, stride, h_kv);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      if (32 * i + j * kRowsOfCopy >= kTileKv) continue;
      const long long at = shuffle_long_from(before, j * kRowsOfCopy + row);
      const char* const from = column + (at == kNowhere ? 0 : at);
      const unsigned eight_rows = (32 * i + j / 2 * 8) * kRowBytes;
#pragma unroll
      for (int slab = 0; slab < slabs(kDim); ++slab) {
        const int slab_unit = slab * kUnits + unit;
        if (slab_unit >= kUsedUnits) continue;
        cp_async_16_or_zero((j % 2 == 0 ? even : odd) + eight_rows + slab * kKvSlabBytes,
                            from + slab * kRowBytes,
                            at != kNowhere && slab_unit * kUnitColumns < kDim);
      }
    }
  }
}

// A tile whose copies are on their way: the barrier at which the consumers wait for it.
struct TileOnItsWay {
  unsigned barrier = 0;

  // Gives it to the consumers, when all copies but those of kBehind tiles are there.
  template <int kBehind>
  ATT_MEMBER void give() {
    if (barrier == 0) return;
    cp_async_wait<kBehind>();
    fence_shared_for_async();
    sync_warp();
    if (thread_index() % 32 == 0) mbarrier_arrive(barrier);
    barrier = 0;
  }
};

// One of the two warps: feeds its ring with the K, or the V, of the scheduler's items, as load()
// does both.
template <bool kIsV>
ATT_FN void load_by_rows(const ForwardParams& p, const SharedMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  RingPosition position;
  TileOnItsWay last;
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    if (item.index == kNoMoreItems) return;
    const Context context = context_of(p, sequence_of(p, item.b), item.b, item.h, item.h_kv);
    ClusterWalk walk;
    TileInfo info = begin_walk(walk, shared, slot, item, context, 0);
    if (leader) mbarrier_arrive(shared.item_empty(slot));
    ListedRows ahead;
    bool has_more = info.flags != kNoTile;
    if (has_more) ahead.look_up(page_table_of(p), item.b, context.kv_len, info.tile * kTileKv);
    do {
      const TileInfo following = has_more ? walk.next(context, 0) : info;
      // As in load().
      if (!kIsV && following.flags == kNoTile && leader) mbarrier_arrive(shared.item_wanted());
      if (!has_more) break;
      const ListedRows rows = ahead;
      if (following.flags != kNoTile)
        ahead.look_up(page_table_of(p), item.b, context.kv_len, following.tile * kTileKv);
      const int stage = position.stage;
      const unsigned empty = kIsV ? shared.v_empty(stage) : shared.k_empty(stage);
      // Its readers may wait for the tile before.
      if (!all_lanes(mbarrier_is_done(empty, position.parity ^ 1))) {
        last.give<0>();
        mbarrier_wait(empty, position.parity ^ 1);
      }
      if constexpr (kIsV) {
        copy_rows<spec::kHeadDimV>(shared.v(stage), p.v, p.v_stride, page_table_of(p), rows,
                                   info.tile * kTileKv, item.h_kv);
      } else {
        if (spec::kHasMask && leader) store_tile_info(shared.tile(stage), following);
        copy_rows<spec::kHeadDimQk>(shared.k(stage), p.k, p.k_stride, page_table_of(p), rows,
                                    info.tile * kTileKv, item.h_kv);
      }
      cp_async_commit();
      last.give<1>();
      last.barrier = kIsV ? shared.v_full(stage) : shared.k_full(stage);
      position.advance();
      info = following;
      has_more = info.flags != kNoTile;
    } while (has_more);
    last.give<0>();
  }
}

}  // namespace sm90
}  // namespace att
