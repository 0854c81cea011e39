// Work items of the sm90a backward's main kernel: a tile of keys of a K/V head. A CTA has one, or
// takes one after the other off a counter, in the order of their numbers: then K, V and the first
// queries of the next one come while the gradients of the last one leave, and no CTA is started
// for it. CTAs which run together share Q and dO in L2.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_order.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/turn_order.h"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

struct WorkItem {
  int b, h_kv, k0;  // negative b: none
  int sums;         // sums_tile()'s base
  int part = 0;     // of its walk
};
ATT_FN int item_count(const BackwardParams& p) {
  const int key_tiles_of_all = key_tiles(p) * p.batch * p.kv_heads;
  if constexpr (kCutsWalks) return key_tiles_of_all * cut_walks(p).parts;
  return key_tiles_of_all;
}
ATT_FN HeadTile<int> taken_tile(const BackwardParams& p, int number, int tiles, int heads) {
  if constexpr (!spec::kHasMask) return backward_tile(number, tiles, heads, false);
  const int most = kLoadsKeysApart ? heads : sum_heads(p).behind;
  return tile_by_group(number, tiles, groups_off_counter(heads, tiles, most), false);
}
// The order of those that take turns, where those are what a head's sums are made for.
ATT_FN TurnOrder<int> turn_order(const BackwardParams& p) {
  const int heads = p.batch * opaque(p.kv_heads);
  return att::turn_order<int>(heads, opaque(key_tiles(p)), plan::kSumWave, sum_heads(p).slots,
                              spec::kHasMask);
}
// Heads of too few tiles have no room for tiles that are early.
constexpr int kLeastTilesOfEarlyHead = 32;
ATT_FN HeadTile<int> tile_in_order(const BackwardParams& p, int number, int tiles, int heads) {
  if constexpr (kTakesTurns) return turn_order(p).item(number);
  if constexpr (plan::kFirstTilesEarly) {
    const int size = max_i32(1, kTilesOfGroup / tiles);
    const int early = early_heads(size, sum_heads(p).behind);
    if (tiles >= kLeastTilesOfEarlyHead && early > 0) {
      return tile_with_early_first(number, tiles, heads, size, early);
    }
  }
  return kTakesItems ? taken_tile(p, number, tiles, heads)
                     : backward_tile(number, tiles, heads, false);
}
// What is divided by is opaque: else its reciprocal is made once and kept from item to item.
ATT_FN WorkItem whole_work_item(const BackwardParams& p, int number) {
  const int tiles = opaque(key_tiles(p)), kv_heads = opaque(p.kv_heads);
  const int heads = p.batch * kv_heads;
  const auto [head, tile] = tile_in_order(p, number, tiles, heads);
  const int b = head / kv_heads, h_kv = head - b * kv_heads;
  return {b, h_kv, tile * kTileKv, kSumsInTurn ? sums_base(p, head, h_kv) : 0};
}
ATT_FN WorkItem work_item(const BackwardParams& p, int number) {
  if constexpr (kCutsWalks && kTakesItems) {
    // Parts of a key tile follow one another: those of the longest ones come first.
    const int parts = opaque(cut_walks(p).parts), item = number / parts;
    WorkItem found = whole_work_item(p, item);
    found.part = number - item * parts;
    return found;
  }
  return whole_work_item(p, number);
}

ATT_FN void store_item(unsigned to, const WorkItem& item) {
  store_shared_4(to, item.b);
  store_shared_4(to + 4, item.h_kv);
  store_shared_4(to + 8, item.k0);
  store_shared_4(to + 12, item.sums);
  if constexpr (kCutsWalks) store_shared_4(to + 16, item.part);
}
ATT_FN WorkItem load_item(unsigned from) {
  const auto word = [&](int i) { return load_uniform_word(from + 4 * i); };
  if constexpr (kCutsWalks) return {word(0), word(1), word(2), word(3), word(4)};
  return {word(0), word(1), word(2), word(3)};
}

// The loader's, which finds the items and tells the other warps. n: items of the CTA before.
ATT_FN WorkItem take_item(const BackwardParams& p, const SharedMemory& shared, unsigned n) {
  const bool leader = thread_index() % 32 == 0;
  int number = 0;
  if (leader) number = take_one_of(p.scheduler_counter);
  number = shuffle_from(number, 0);
  WorkItem item{-1, 0, 0, 0};
  if (number < item_count(p)) item = work_item(p, number);
  mbarrier_wait(shared.item_empty(n), (n >> 1 & 1) ^ 1);
  if (leader) {
    store_item(shared.item_slot(n), item);
    mbarrier_arrive(shared.item_full(n));
  }
  return item;
}

// The items for another warp: body(item, parity), where `parity` is that of barriers which each
// item completes once.
template <typename Body>
ATT_FN void for_each_item(const BackwardParams& p, const SharedMemory& shared, const Body& body) {
  if constexpr (kTakesItems) {
    for (unsigned n = 0;; ++n) {
      mbarrier_wait(shared.item_full(n), n >> 1 & 1);
      const WorkItem item = load_item(shared.item_slot(n));
      if (item.b < 0) return;
      body(item, n & 1);
      sync_warp();
      if (thread_index() % 32 == 0) mbarrier_arrive(shared.item_empty(n));
    }
  } else {
    body(work_item(p, own_key_tile(p)), 0u);
  }
}

}  // namespace sm90
}  // namespace att
