// The main kernel of the sm90a backward's: a CTA takes a tile of keys, 64 for each consumer
// warpgroup, and walks the live query tiles of all query heads that share the keys, which a loader
// warp brings by TMA.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/backward_order.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_consumer.cuh"
#include "templates/tile/sm90_backward_items.cuh"
#include "templates/tile/sm90_backward_later_rows.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_leave.cuh"
#include "templates/tile/sm90_backward_long_walk.cuh"
#include "templates/tile/sm90_backward_packed.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_rows_ahead.cuh"
#include "templates/tile/sm90_backward_rows_behind.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/sm90_backward_tight_walk.cuh"
#include "templates/tile/sm90_backward_turns.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

ATT_FN void init_barriers(const SharedMemory& shared) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared.q_full(stage), 1);
    mbarrier_init(shared.do_full(stage), 1);
    mbarrier_init(shared.q_empty(stage), 4 * kWarpgroups + (kTakesTurns ? 1 : 0));
    mbarrier_init(shared.do_empty(stage), 4 * kWarpgroups);
  }
  for (int buffer = 0; buffer < kDsBuffers; ++buffer) {
    mbarrier_init(shared.ds_full(buffer), 4 * kWarpgroups);
    mbarrier_init(shared.ds_empty(buffer), 4 * kDqShares);
  }
  if constexpr (kDsBuffers > 0) {
    mbarrier_init(shared.sums_ready(), 1);
    mbarrier_init(shared.sums_added(), 4 * kWarpgroups);
    mbarrier_init(shared.sums_told(), 1);
    if constexpr (kHelpsInPassing) mbarrier_init(shared.all_loaded(), 1);
  }
  for (int warp = 0; warp < plan::kRowWarps; ++warp) mbarrier_init(shared.rows_staged(warp), 1);
  for (int n = 0; kTakesTurns && n < kTurns; ++n) {
    mbarrier_init(shared.turn_taken(n), 1);
    mbarrier_init(shared.turn_used(n), 4 * kDqShares);
    mbarrier_init(shared.turn_passed(n), 1);
  }
  mbarrier_init(shared.kv_full(), 1);
  if constexpr (kTakesItems) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.item_full(i), 1);
      mbarrier_init(shared.item_empty(i), 4 * kWarpgroups + kItemReaders);
    }
    mbarrier_init(shared.v_full(), 1);
    mbarrier_init(shared.k_empty(), 4 * kWarpgroups);
    mbarrier_init(shared.v_empty(), 4 * kWarpgroups);
  }
  if constexpr (spec::kIsPacked) {
    mbarrier_init(shared.kv_raw(), 1);
    mbarrier_init(shared.q_raw(), 2);
  }
  if constexpr (kLoadsKeysApart) mbarrier_init(shared.last_tile_found(), 1);
  mbarrier_init_fence();
}

// ---- The loader warp.

// An item. `at` goes on from item to item.
ATT_FN void load(const BackwardParams& p, const TensorMap* q_map, const TensorMap* k_map,
                 const TensorMap* v_map, const TensorMap* do_map, const SharedMemory& shared,
                 const WorkItem& item, unsigned parity, RingPosition& at) {
  const bool leader = thread_index() % 32 == 0;
  const int group = p.heads / p.kv_heads;
  const int rows = padded_rows(p.q_len);
  // The first queries come before, where they need not wait for the keys of the last item.
  bool has_keys = false;
  const auto load_keys = [&] {
    if constexpr (kTakesItems) mbarrier_wait(shared.k_empty(), parity ^ 1);
    if (leader) {
      mbarrier_arrive_expect(shared.kv_full(), kKBytes + (kTakesItems ? 0 : kVBytes));
      load_slabs<kQkSlabs>(shared.k(), kKvSlabBytes, k_map, shared.kv_full(), item.k0, item.h_kv,
                           item.b, CacheHint::kEvictFirst);
    }
    if constexpr (kTakesItems) mbarrier_wait(shared.v_empty(), parity ^ 1);
    if (leader) {
      if constexpr (kTakesItems) mbarrier_arrive_expect(shared.v_full(), kVBytes);
      load_slabs<kVSlabs>(shared.v(), kKvSlabBytes, v_map,
                          kTakesItems ? shared.v_full() : shared.kv_full(), item.k0, item.h_kv,
                          item.b, CacheHint::kEvictFirst);
    }
    has_keys = true;
  };
  if constexpr (!kTakesItems) load_keys();
  if constexpr (kMakesRowsAhead) wait_for_rows(p, item.b * p.kv_heads + item.h_kv);
  int next_head = item.h_kv * group;
  int end_head = next_head + group;
  if constexpr (kCutsWalks) {
    const WalkPart part = own_walk_part(p);
    end_head = next_head + part.end_head;
    next_head += part.first_head;
  }
  QueryWalk<kTileQ, kWarpgroups, plan::kRotated, kTakesTurns, kSkipsDeadFirst> walk;
  walk.live = 0;
  if constexpr (kTakesTurns) {
    walk.turn_round(turn_order(p).is_turned_round(item.b * p.kv_heads + item.h_kv));
  }
  TileInfo info, following;
  // The next live tile, of this head or the ones after it.
  bool begun = false;
  const auto find = [&](TileInfo& out) {
    while (true) {
      if (begun) {
        const Context c{p, item.b, next_head, item.h_kv, p.q_len, p.kv_len};
        if (walk.next(c, out)) {
          out.h = next_head;
          return true;
        }
        ++next_head;
      }
      if (next_head >= end_head) return false;
      const Context c{p, item.b, next_head, item.h_kv, p.q_len, p.kv_len};
      walk.begin(c, item.k0);
      if constexpr (kCutsWalks) {
        walk.keep(own_walk_part(p).cut(next_head - item.h_kv * group, walk.tiles));
      }
      begun = true;
    }
  };
  bool has_tile = find(info);
  // An item without tiles is told by one that has no rows: all of its references are infinite. Off
  // the counter it is one whose results are dropped: consumers that did nothing could be ahead of
  // the warp that keeps the sums by two items, whose barriers know one from the next only.
  if (!has_tile) info = {kTakesItems ? 0 : -1, item.h_kv * group, kTakesItems ? kDropped : 0, 0};
  do {
    const bool more = has_tile && find(following);
    tell_what_follows<kSkipsDeadFirst>(info, more);
    const int row = info.tile < 0 ? p.q_len : info.tile * kTileQ;
    mbarrier_wait(shared.q_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.tile(at.stage), info);
      const long long first =
          (static_cast<long long>(item.b) * p.heads + info.h) * rows + (info.tile < 0 ? 0 : row);
      mbarrier_arrive_expect(shared.q_full(at.stage), kQBytes + kReferenceBytes);
      load_slabs<kQkSlabs>(shared.q(at.stage), kQSlabBytes, q_map, shared.q_full(at.stage), row,
                           info.h, item.b, CacheHint::kEvictLast);
      bulk_load(shared.references(at.stage),
                p.row_references + first * (kReferenceBytes / kTileQ / 4), kReferenceBytes,
                shared.q_full(at.stage));
    }
    if (kTakesItems && !has_keys) load_keys();
    mbarrier_wait(shared.do_empty(at.stage), at.parity ^ 1);
    if (leader) {
      const long long first =
          (static_cast<long long>(item.b) * p.heads + info.h) * rows + (info.tile < 0 ? 0 : row);
      mbarrier_arrive_expect(shared.do_full(at.stage), kDoBytes + kDeltaBytes);
      load_slabs<kVSlabs>(shared.d_o(at.stage), kQSlabBytes, do_map, shared.do_full(at.stage), row,
                          info.h, item.b, CacheHint::kEvictLast);
      bulk_load(shared.deltas(at.stage), p.row_deltas + first * (kDeltaBytes / 4 / kTileQ),
                kDeltaBytes, shared.do_full(at.stage));
    }
    at.advance();
    has_tile = more;
    info = following;
  } while (has_tile);
}

ATT_FN void load_items(const BackwardParams& p, const TensorMap* q_map, const TensorMap* k_map,
                       const TensorMap* v_map, const TensorMap* do_map,
                       const SharedMemory& shared) {
  RingPosition at;
  if constexpr (kTakesItems) {
    // The next one is taken when all of the last one is on its way, not before: who holds one in
    // reserve may end late.
    for (unsigned n = 0;; ++n) {
      const WorkItem item = take_item(p, shared, n);
      if (item.b < 0) return;
      load(p, q_map, k_map, v_map, do_map, shared, item, n & 1, at);
    }
  } else {
    load(p, q_map, k_map, v_map, do_map, shared, work_item(p, own_key_tile(p)), 0, at);
    if (kHelpsInPassing && thread_index() % 32 == 0) mbarrier_arrive(shared.all_loaded());
  }
}

// ---- The warps beside it, which serve other heads meanwhile. The first one asks for the item's
// sums of dQ and says that they have been added to.

ATT_FN void help(const BackwardParams& p, const SharedMemory& shared, int helper) {
  const bool keeps_sums = helper == 0 && thread_index() % 32 == 0;
  [[maybe_unused]] unsigned row_parity = 0;
  for_each_item(p, shared, [&](const WorkItem& item, unsigned parity) {
    const int head = item.b * p.kv_heads + item.h_kv;
    if (keeps_sums) {
      wait_for_sums(p, head);
      mbarrier_arrive(shared.sums_ready());
    }
    sync_warp();
    if constexpr (kMakesRowsAhead) make_rows_ahead(p, shared, head, helper, row_parity);
    if constexpr (kTakesItems) make_rows_behind(p, head);
    if (keeps_sums) {
      [[maybe_unused]] int earlier = -1;
      if constexpr (kHelpsInPassing) {
        const AskedHeads asked = asked_heads(p, head, item.k0 / kTileKv);
        // Late, for what they say to hold, and before the consumers are done and wait for it.
        mbarrier_wait(shared.all_loaded(), 0);
        earlier = head_to_bring(p, asked);
      }
      mbarrier_wait(shared.sums_added(), parity);
      const bool is_last = is_last_of_head(p, head);
      if constexpr (!kTakesItems) {
        const int own = kHelpsInPassing ? head + 1 : 1;
        store_shared_4(shared.brings(), is_last ? own : earlier + 1);
        mbarrier_arrive(shared.sums_told());
      }
    }
  });
}

// ---- The consumers.

template <bool kFirst, typename A, typename B>
ATT_FN auto& choose(A& a, B& b) {
  if constexpr (kFirst) {
    return a;
  } else {
    return b;
  }
}

// Makes dK and dV of an item and lets them go. `at` and `written` go on from item to item.
template <bool kMakesQueries, typename Item>
ATT_FN void consume(const BackwardParams& p, const TensorMap* dk_map, const TensorMap* dv_map,
                    const SharedMemory& shared, int warpgroup, const Item& item, unsigned parity,
                    RingPosition& at, unsigned& written) {
  Products s, d;
  Operand p_operand, ds_operand;
  KeyGradient d_k;
  ValueGradient d_v;
  [[maybe_unused]] QueryGradient<kMakesQueries> own_d_q;
  // dQ of a tile comes when dP of it is done with, and goes before the next one's; or S.
  auto& d_q = choose < kMakesQueries &&
              kMakesDqOfS > (s, choose < sizeof(own_d_q) == sizeof(d) > (d, own_d_q));
  KeyRowsOperand<kColumnsQk> k_rows;
  KeyRowsOperand<kColumnsV> v_rows;
  Consumer<kMakesQueries> consumer{p,     shared, warpgroup, thread_index() % kWarpgroupThreads,
                                   s,     d,      p_operand, ds_operand,
                                   d_k,   d_v,    d_q,       k_rows,
                                   v_rows};
  consumer.take(item);
  consumer.parity = parity;
  consumer.at = at;
  consumer.written = written;
  mbarrier_wait(shared.kv_full(), parity);
  if constexpr (kTakesItems) {
    // All warps' rows of the last item's dK have left.
    if (thread_index() % 32 == 0) tma_store_wait_read();
    named_barrier_sync(warpgroup_barrier(warpgroup), kWarpgroupThreads);
  }
  if constexpr (kMakesQueries && kWalksLong) {
    walk_long_tiles(consumer);
  } else if constexpr (kMakesQueries && kWalksTightly) {
    walk_tightly(consumer);
  } else {
    consumer.run();
  }
  at = consumer.at;
  written = consumer.written;
  if constexpr (kMakesQueries && kSumsInTurn && !kLoadsKeysApart) {
    sync_warp();
    if (thread_index() % 32 == 0) mbarrier_arrive(shared.sums_added());
  }
  const float keep_scale = scale_of_values(p);
  if constexpr (kTakesItems) {
    leave(consumer, keep_scale, dk_map, dv_map);
  } else {
    // All have read K; of V each warpgroup has read its own rows only.
    named_barrier_sync(kAllConsumers, kConsumerThreads);
    if constexpr (kCutsWalks) {
      if (leaves_part(consumer)) return;
    }
    store<kColumnsV>(consumer, d_v, keep_scale, shared.v(), dv_map);
    store<kColumnsQk>(consumer, d_k, softmax_scale(p), shared.k(), dk_map);
    if constexpr (kMakesQueries && kSumsInTurn) {
      mbarrier_wait(shared.sums_told(), parity);
      const int brings = load_uniform_word(shared.brings());
      if (brings != 0) {
        if constexpr (kHelpsInPassing) {
          bring_at_end(p, brings - 1, consumer.b * p.kv_heads + consumer.h_kv);
        } else {
          convert_head(p, consumer.b, consumer.h_kv, warpgroup);
        }
      }
    }
  }
}

template <bool kMakesQueries>
ATT_FN void consume_items(const BackwardParams& p, const TensorMap* dk_map, const TensorMap* dv_map,
                          const SharedMemory& shared, int warpgroup) {
  RingPosition at;
  unsigned written = 0;
  if constexpr (kLoadsKeysApart) {
    for_each_listed_item(shared, [&](const ListedItem& item, unsigned n) {
      consume<kMakesQueries>(p, dk_map, dv_map, shared, warpgroup, item, n & 1, at, written);
    });
  } else {
    for_each_item(p, shared, [&](const WorkItem& item, unsigned parity) {
      consume<kMakesQueries>(p, dk_map, dv_map, shared, warpgroup, item, parity, at, written);
    });
  }
  if (thread_index() % 32 == 0) tma_store_wait();
}

// ---- A CTA's. kMakesQueries: see Consumer.

template <bool kMakesQueries>
ATT_FN void make_key_gradients(const BackwardParams& p, const TensorMap* q_map,
                               const TensorMap* k_map, const TensorMap* v_map,
                               const TensorMap* do_map, const TensorMap* dk_map,
                               const TensorMap* dv_map, const SharedMemory& shared) {
  if (thread_index() < 32) store_halves(shared.halves());
  if (thread_index() == 0) {
    init_barriers(shared);
    tma_prefetch_map(q_map);
    tma_prefetch_map(k_map);
    tma_prefetch_map(v_map);
    tma_prefetch_map(do_map);
  }
  if constexpr (kMakesQueries && !kStartsQueriesEarly) let_next_launch_start();
  wait_for_launches_before();
  // That one looks at counters which the launch in front of this one has zeroed.
  if constexpr (kStartsQueriesEarly) let_next_launch_start();
  // The ordered queries' launch does not wait for this one: see make_query_gradients().
  if constexpr (!kMakesQueries) let_next_launch_start();
  sync_threads();
  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<kProducerRegisters>();
    const int warp = shuffle_from(thread_index() / 32, 0);
    if constexpr (kLoadsKeysApart) {
      if (warp == 0) load_listed_queries(p, q_map, do_map, shared);
      if (warp == 1) load_listed_keys(p, k_map, v_map, shared);
      if (kMakesRowsAhead && warp >= 2) make_later_rows(p, shared, warp - 2);
    } else {
      if (warp == 0) load_items(p, q_map, k_map, v_map, do_map, shared);
      if (warp > 0 && warp <= kHelpers) help(p, shared, warp - 1);
    }
    if constexpr (kTakesTurns) {
      if (warp == 2) take_turns(p, shared);
      if (warp == 3 && thread_index() % 32 == 0) pass_turns(p, shared);
    }
  } else {
    registers_acquire_to<kConsumerRegisters>();
    consume_items<kMakesQueries>(p, dk_map, dv_map, shared, warpgroup);
  }
}

}  // namespace sm90
}  // namespace att
