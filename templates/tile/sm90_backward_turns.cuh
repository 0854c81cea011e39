// Where a spec asks for the same bits at every launch, the CTAs of a K/V head take turns at the
// sums of dQ of a query tile, in an order of their key tiles. Two warps beside the loader see to
// it: one waits for the CTA's turns ahead of its consumers, the other passes them on behind them,
// so that no consumer waits for memory.
//
// In which order: templates/turn_order.h.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_items.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_listed.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/turn_order.h"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

static_assert(!kTakesTurns || kTileQ == kRowsAtATime, "clear_query_sums() clears a turn a tile");

// The turn of the key tile whose CTA visits the query tile before that of key tile `tile`;
// negative: none does. The whole warp's.
//
// A tile that kv_bounds() leaves out adds zeros, if its CTA visits the query tile at all, and the
// order of zeros does not matter.
ATT_FN int turn_before(const Context& c, int query_tile, int tile, const TurnOrder<int>& order,
                       bool turned_round) {
  if constexpr (!spec::kHasMask) return tile - 1;
  using Walk = QueryWalk<kTileQ, kWarpgroups, false>;
  const int q0 = query_tile * kTileQ;
  const KvBounds bounds = kv_bounds(c, q0, min_i32(q0 + kTileQ, c.q_len));
  const int step = turned_round ? -1 : 1;
  const int end = turned_round ? bounds.begin / kTileKv - 1 : tile_count(bounds.end, kTileKv);
#pragma unroll 1
  for (int first = tile + step; (end - first) * step > 0; first += step * Walk::kStep) {
    const int other = first + step * (lane_index() / Walk::kParts);
    bool is_visited = false;
    if ((end - other) * step > 0) {
      const int k0 = other * kTileKv;
      is_visited =
          Walk::tiles_of(c, k0).has(query_tile) &&
          Walk::class_of(c, query_tile, k0, lane_index() % Walk::kParts) != TileClass::kSkip;
    }
    const unsigned visited = ballot(is_visited);
    if (visited != 0) {
      const int found = first + step * (highest_bit(visited & (0 - visited)) / Walk::kParts);
      return order.turn_of_tile(found, turned_round);
    }
  }
  return -1;
}

// A CTA's n-th turn. A negative index: it has had all of them.
struct Turn {
  int index;  // in sum_turns
  int next;   // what is there when it is passed on
};
ATT_FN void store_turn(unsigned address, const Turn& turn) {
  store_shared_4(address, turn.index);
  store_shared_4(address + 4, turn.next);
}
ATT_FN Turn load_turn(unsigned address) {
  return {static_cast<int>(load_shared_4(address)), static_cast<int>(load_shared_4(address + 4))};
}

// One thread's: turn n is the CTA's.
ATT_FN void tell_turn(const SharedMemory& shared, unsigned n, const Turn& turn) {
  mbarrier_wait(shared.turn_passed(n), shared.turn_parity(n) ^ 1);
  store_turn(shared.turn(n), turn);
  mbarrier_arrive(shared.turn_taken(n));
}

// A warp's, which reads what the stages say of an item's tiles, as the consumers do. `at` and `n`,
// turns so far, go on from item to item. An item without tiles has no turn.
ATT_FN void take_turns(const BackwardParams& p, const SharedMemory& shared, int b, int h_kv,
                       int key_tile, RingPosition& at, unsigned& n) {
  const bool leader = thread_index() % 32 == 0;
  const TurnOrder<int> order = turn_order(p);
  const bool turned_round = order.is_turned_round(b * p.kv_heads + h_kv);
  const int own = order.turn_of_tile(key_tile, turned_round);
  TileInfo info;
  do {
    mbarrier_wait(shared.q_full(at.stage), at.parity);
    info = load_tile_info(shared.tile(at.stage));
    if (leader) mbarrier_arrive(shared.q_empty(at.stage));
    at.advance();
    if (info.tile < 0) return;
    const int before = turn_before(Context{p, b, info.h, h_kv, p.q_len, p.kv_len}, info.tile,
                                   key_tile, order, turned_round);
    if (leader) {
      const int index = (b * p.heads + info.h) * tile_count(p.q_len, kTileQ) + info.tile;
      if (before >= 0) {
        while (load_acquire(p.sum_turns + index) <= before) {
        }
      }
      tell_turn(shared, n, {index, own + 1});
    }
    sync_warp();
    ++n;
  } while (info.more != 0);
}

ATT_FN void take_turns(const BackwardParams& p, const SharedMemory& shared) {
  RingPosition at;
  unsigned n = 0;
  if constexpr (kLoadsKeysApart) {
    for_each_listed_item(shared, [&](const ListedItem& item, unsigned) {
      take_turns(p, shared, item.b, item.h_kv, item.k0 / kTileKv, at, n);
    });
  } else {
    const WorkItem item = work_item(p, block_index());
    take_turns(p, shared, item.b, item.h_kv, item.k0 / kTileKv, at, n);
  }
  if (thread_index() % 32 == 0) tell_turn(shared, n, {-1, 0});
}

// One thread's.
ATT_FN void pass_turns(const BackwardParams& p, const SharedMemory& shared) {
  for (unsigned n = 0;; ++n) {
    mbarrier_wait(shared.turn_taken(n), shared.turn_parity(n));
    const Turn turn = load_turn(shared.turn(n));
    if (turn.index < 0) return;
    mbarrier_wait(shared.turn_used(n), shared.turn_parity(n));
    raise(p.sum_turns + turn.index, turn.next);
    mbarrier_arrive(shared.turn_passed(n));
  }
}

}  // namespace sm90
}  // namespace att
