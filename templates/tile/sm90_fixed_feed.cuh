// What feeds the consumers of batch-invariant specs' sm90a kernel: the scheduler warp finds work
// and moves Q, the loader warp K and V in the fixed order.
#pragma once

#include "templates/tile/sm90_fixed_walk.cuh"
#include "templates/tile/sm90_pipeline.cuh"
#include "templates/tile/sm90_schedule.cuh"

namespace att {
namespace sm90 {

ATT_FN void schedule_in_order(const ForwardParams& p, const TensorMap* q_map,
                              const SharedMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  ItemSource source(p);
  HeadGroups<int> groups{};
  if constexpr (!spec::kIsPacked) groups = groups_of(p);
  for (int n = 0;; ++n) {
    if (n > 0) mbarrier_wait(shared.item_wanted(), (n & 1) ^ 1);
    ItemSlot item = source.next(p, shared);
    const int slot = n % kItemSlots;
    ++source.issued;
    if (item.index != kNoMoreItems) {
      const WorkItem work = work_item(p, groups, item.index);
      item.b = work.b;
      item.h = work.h;
      item.q0 = work.q0;
      item.h_kv = work.h / (opaque(p.heads) / p.kv_heads);
    }
    if (leader) {
      store_slot(shared.item(slot), item);
      mbarrier_arrive(shared.item_full(slot));
    }
    if (item.index == kNoMoreItems) return;
    const Sequence sequence = sequence_of(p, item.b);
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      mbarrier_wait(shared.q_empty(warpgroup), (n & 1) ^ 1);
      if (!leader) continue;
      mbarrier_arrive_expect(shared.q_full(warpgroup), kQBytes);
      for (int slab = 0; slab < kQkSlabs; ++slab) {
        tma_load(shared.q(warpgroup) + slab * kQSlabBytes, q_map, shared.q_full(warpgroup),
                 slab * kSlabColumns, sequence.q_first + item.q0 + warpgroup * kRows, item.h,
                 sequence.slice, CacheHint::kEvictFirst);
      }
    }
  }
}

// A stage's words: of its tile, and what follows it.
ATT_FN TileInfo info_of(const FixedTile& tile, const FixedTile& following) {
  const bool is_last = following.chain < 0;
  const bool piece_ends = is_last || following.chain / kChains != tile.chain / kChains;
  const bool chain_ends = is_last || following.chain != tile.chain;
  return {tile.tile, (chain_ends ? kChainEnds : 0) | (piece_ends ? kPieceEnds : 0) |
                         (is_last ? kItemEnds : 0) | static_cast<int>(tile.full << kFullShift)};
}

ATT_FN void load_in_order(const ForwardParams& p, const TensorMap* k_map, const TensorMap* v_map,
                          const SharedMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  RingPosition position;
  ForeignRows foreign;
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    if (item.index == kNoMoreItems) return;
    if (leader) mbarrier_arrive(shared.item_empty(slot));
    const Sequence sequence = sequence_of(p, item.b);
    const Context context = context_of(p, sequence, item.b, item.h, item.h_kv);
    FixedWalk walk(context, item.q0);
    FixedTile tile = walk.next_tile(context);
    // A tile ahead of the copies.
    PagedKey next_box = {};
    const auto look_up = [&](const FixedTile& at) {
      if constexpr (spec::kIsPaged)
        next_box = look_up_box(page_table_of(p), item.b, context.kv_len, at.tile * kTileKv);
    };
    look_up(tile);
    while (tile.chain >= 0) {
      const FixedTile following = walk.next_tile(context);
      if (following.chain < 0 && leader) mbarrier_arrive(shared.item_wanted());
      const int row = sequence.kv_first + tile.tile * kTileKv;
      const PagedKey box = next_box;
      if (following.chain >= 0) look_up(following);
      const unsigned k = shared.k(position.stage), v = shared.v(position.stage);
      const unsigned k_full = shared.k_full(position.stage);
      mbarrier_wait(shared.k_empty(position.stage), position.parity ^ 1);
      if (leader) store_tile_info(shared.tile(position.stage), info_of(tile, following));
      if constexpr (spec::kIsPaged) {
        load_page_boxes<kQkSlabs>(k, k_map, k_full, page_table_of(p), box, item.h_kv);
      } else if (leader) {
        load_tile<kQkSlabs>(k, k_map, k_full, row, item.h_kv, sequence.slice, 0);
      }
      if constexpr (spec::kIsPacked) foreign.clear(shared);
      mbarrier_wait(shared.v_empty(position.stage), position.parity ^ 1);
      const int own_rows = max_i32(context.kv_len - tile.tile * kTileKv, 0);
      const bool has_foreign = spec::kIsPacked && own_rows < kTileKv;
      const unsigned v_full =
          has_foreign ? shared.v_raw(position.stage) : shared.v_full(position.stage);
      if constexpr (spec::kIsPaged) {
        load_page_boxes<kVSlabs>(v, v_map, v_full, page_table_of(p), box, item.h_kv);
      } else if (leader) {
        load_tile<kVSlabs>(v, v_map, v_full, row, item.h_kv, sequence.slice, 0);
      }
      if (has_foreign) foreign.wait_for(position.stage, own_rows);
      position.advance();
      tile = following;
    }
    if constexpr (spec::kIsPacked) foreign.clear(shared);
  }
}

}  // namespace sm90
}  // namespace att
