// Warps of the sm90a family's backward kernel that find items and load their keys and queries;
// packed sequences always have them. TMA knows no sequence: the last tile of one brings rows of the
// next, which may be anything, and what is stored so would overwrite them.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_listed.cuh"
#include "templates/tile/sm90_backward_packed_rows.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_rows_ahead.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_foreign_rows.cuh"
#include "templates/tile/walk_parts.cuh"

namespace att {
namespace sm90 {

// ---- Rows of other sequences, zeroed before the consumers see them: 0 times NaN is NaN.

ATT_FN bool has_foreign_keys(const ListedItem& item) {
  return spec::kIsPacked && item.k0 + kTileKv > item.own.kv_len;
}

// ---- The warp that finds the items and loads their keys.

// K or V, to `full`. Where rows of another sequence come with it, it comes to `raw` first.
template <int kSlabs>
ATT_FN void load_listed_keys(const ListedItem& item, const TensorMap* map, unsigned matrix,
                             unsigned raw, unsigned full, unsigned& raw_parity) {
  const bool leader = thread_index() % 32 == 0;
  const bool has_foreign = has_foreign_keys(item);
  if (leader) {
    const unsigned barrier = has_foreign ? raw : full;
    mbarrier_arrive_expect(barrier, kSlabs * kKvSlabBytes);
    load_slabs<kSlabs>(matrix, kKvSlabBytes, map, barrier, item.own.kv_first + item.k0, item.h_kv,
                       item.own.slice, CacheHint::kEvictFirst);
  }
  if (!has_foreign) return;
  mbarrier_wait(raw, raw_parity);
  raw_parity ^= 1;
  clear_rows<kSlabs, kTileKv>(matrix, item.own.kv_len - item.k0);
  fence_shared_for_async();
  sync_warp();
  if (leader) mbarrier_arrive(full);
}

// When consumers have given K back all of the item has been added to its head's sums. `head`:
// negative, none.
ATT_FN void tell_sums(const BackwardParams& p, int head) {
  if (head >= 0 && thread_index() % 32 == 0) arrive(&p.head_counters[head].sums_added);
}

ATT_FN void load_listed_keys(const BackwardParams& p, const TensorMap* k_map,
                             const TensorMap* v_map, const SharedMemory& shared) {
  unsigned raw_parity = 0;
  [[maybe_unused]] int head = -1;  // of the item before
  for (unsigned n = 0;; ++n) {
    const unsigned parity = n & 1;
    // Not before the last one is nearly done: who holds one in reserve may end late.
    mbarrier_wait(shared.last_tile_found(), parity ^ 1);
    const ListedItem item = take_listed_item(p, shared, n);
    if (item.b < 0) {
      if constexpr (kStartsQueriesEarly) {
        mbarrier_wait(shared.k_empty(), parity ^ 1);
        tell_sums(p, head);
      }
      return;
    }
    mbarrier_wait(shared.v_empty(), parity ^ 1);  // which comes before k_empty
    load_listed_keys<kVSlabs>(item, v_map, shared.v(), shared.kv_raw(), shared.v_full(),
                              raw_parity);
    mbarrier_wait(shared.k_empty(), parity ^ 1);
    load_listed_keys<kQkSlabs>(item, k_map, shared.k(), shared.kv_raw(), shared.kv_full(),
                               raw_parity);
    if constexpr (kStartsQueriesEarly) {
      tell_sums(p, head);
      head = item.b * p.kv_heads + item.h_kv;
    }
  }
}

// ---- The warp that loads the queries.

// The live tiles of an item. What is known of the item is read anew when it is asked for, as the
// warp has few registers.
struct ListedWalk {
  const BackwardParams& p;
  unsigned slot;  // of the item
  int h;          // the query head
  QueryWalk<kTileQ, kWarpgroups, plan::kRotated, kTakesTurns, kSkipsDeadFirst> walk;

  ATT_MEMBER Context context(const ListedItem& item) const {
    return item_context(p, item.own, item.b, h, item.h_kv);
  }
  ATT_MEMBER void begin(const ListedItem& item) {
    h = item.h_kv * (p.heads / opaque(p.kv_heads));
    if constexpr (kTakesTurns) {
      walk.turn_round(turn_order(p).is_turned_round(item.b * p.kv_heads + item.h_kv));
    }
    if constexpr (kCutsWalks) h += part_of(item).first_head;
    begin_head(item);
  }
  // The next one, of this head or the ones after it that share the keys.
  ATT_MEMBER bool next(TileInfo& out) {
    if constexpr (spec::kHasMask) {
      while (walk.live == 0) {
        if (!go_on()) return false;
      }
      walk.take(out);
    } else {
      while (!walk.next(context(load_listed_item(slot)), out)) {
        if (!begin_next_head(load_listed_item(slot))) return false;
      }
    }
    out.h = h;
    return true;
  }
  // Whether the item's keys are all that the tile sees.
  ATT_MEMBER bool has_no_other_keys(int tile) const {
    const ListedItem item = load_listed_item(slot);
    return sm90::has_no_other_keys(context(item), tile, item.k0);
  }

 private:
  ATT_MEMBER WalkPart part_of(const ListedItem& item) const {
    return walk_part(p, queries_of(p, item.own), item.part);
  }
  ATT_MEMBER void begin_head(const ListedItem& item) {
    walk.begin(context(item), item.k0);
    if constexpr (kCutsWalks) {
      const int first = item.h_kv * (p.heads / opaque(p.kv_heads));
      walk.keep(part_of(item).cut(h - first, walk.tiles));
    }
  }
  ATT_MEMBER int end_head(const ListedItem& item) const {
    const int group = p.heads / opaque(p.kv_heads);
    if constexpr (kCutsWalks) return item.h_kv * group + part_of(item).end_head;
    return (item.h_kv + 1) * group;
  }
  ATT_MEMBER bool begin_next_head(const ListedItem& item) {
    if (++h >= end_head(item)) return false;
    begin_head(item);
    return true;
  }
  ATT_MEMBER bool go_on() {
    const ListedItem item = load_listed_item(slot);
    walk.k0 = item.k0;
    return walk.look(context(item)) || begin_next_head(item);
  }
};

// Of an item; `at` and `raw_parity` go on from item to item.
ATT_FN void load_listed_queries(const BackwardParams& p, const TensorMap* q_map,
                                const TensorMap* do_map, const SharedMemory& shared,
                                const ListedItem& item, unsigned slot, RingPosition& at,
                                unsigned& raw_parity) {
  const bool leader = thread_index() % 32 == 0;
  ListedWalk walk{p, slot};
  walk.begin(item);
  const int sums = item.sums, q_first = item.own.q_first, slice = item.own.slice;
  const int q_len = queries_of(p, item.own);
  TileInfo info, following;
  bool has_tile = walk.next(info);
  // An item without tiles is told by one behind all tokens: Q and dO come as zeros, and what else
  // comes is not looked at.
  if (!has_tile) info = {-1, walk.h - 1, 0, 0};
  do {
    if (has_tile && walk.has_no_other_keys(info.tile)) info.flags |= kAllOfQueries;
    const bool more = has_tile && walk.next(following);
    tell_what_follows<kSkipsDeadFirst>(info, more);
    // Before the last tile is loaded: to find the next item takes three round trips to memory.
    if (!more && leader) mbarrier_arrive(shared.last_tile_found());
    const int row = info.tile < 0 ? p.q_len : q_first + info.tile * kTileQ;
    const int own_rows = info.tile < 0 ? kTileQ : q_len - info.tile * kTileQ;
    const bool has_foreign = spec::kIsPacked && own_rows < kTileQ;
    // What is known of the rows lies as dQ's sums do.
    const int known = sums_tile(p, sums, info.h, max_i32(info.tile, 0));
    mbarrier_wait(shared.q_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.tile(at.stage), info);
      const unsigned barrier = has_foreign ? shared.q_raw() : shared.q_full(at.stage);
      mbarrier_arrive_expect(barrier, kQBytes + kReferenceBytes);
      load_slabs<kQkSlabs>(shared.q(at.stage), kQSlabBytes, q_map, barrier, row, info.h, slice,
                           CacheHint::kEvictLast);
      bulk_load(shared.references(at.stage),
                p.row_references + static_cast<long long>(known) * (kReferenceBytes / 4),
                kReferenceBytes, barrier);
    }
    mbarrier_wait(shared.do_empty(at.stage), at.parity ^ 1);
    if (leader) {
      const unsigned barrier = has_foreign ? shared.q_raw() : shared.do_full(at.stage);
      mbarrier_arrive_expect(barrier, kDoBytes + kDeltaBytes);
      load_slabs<kVSlabs>(shared.d_o(at.stage), kQSlabBytes, do_map, barrier, row, info.h, slice,
                          CacheHint::kEvictLast);
      bulk_load(shared.deltas(at.stage),
                p.row_deltas + static_cast<long long>(known) * (kDeltaBytes / 4), kDeltaBytes,
                barrier);
    }
    if (has_foreign) {
      give_own_rows<kTileQ>(shared.q_raw(), raw_parity, own_rows, shared.q(at.stage),
                            shared.q_full(at.stage), shared.d_o(at.stage),
                            shared.do_full(at.stage));
      raw_parity ^= 1;
    }
    at.advance();
    has_tile = more;
    info = following;
  } while (has_tile);
}

ATT_FN void load_listed_queries(const BackwardParams& p, const TensorMap* q_map,
                                const TensorMap* do_map, const SharedMemory& shared) {
  RingPosition at;
  unsigned raw_parity = 0;
  for_each_listed_item(shared, [&](const ListedItem& item, unsigned n) {
    if constexpr (kMakesRowsAhead) wait_for_rows(p, item.b * p.kv_heads + item.h_kv);
    load_listed_queries(p, q_map, do_map, shared, item, shared.item_slot(n), at, raw_parity);
  });
}

}  // namespace sm90
}  // namespace att
