// Where a spec asks for the same bits at every launch, the CTAs of a K/V head take turns at the
// sums of dQ of a query tile, in an order of their key tiles. Two warps beside the loader see to
// it: one waits for the CTA's turns ahead of its consumers, the other passes them on behind them,
// so that no consumer waits for memory.
//
// With a mask the last key tile comes first. Under a causal one a CTA then begins with query tiles
// that are its own, and when it comes to another's, that one has been there. Without a mask all
// begin with the first query tile, the first key tile ahead. A CTA waits for none but CTAs of lower
// numbers, which have started before.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/backward_order.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

static_assert(!kTakesTurns || kTileQ == kRowsAtATime, "clear_query_sums() clears a turn a tile");

// Where a key tile comes in the order, and the other way round.
ATT_FN int turn_of_tile(int tile, int tiles) { return spec::kHasMask ? tiles - 1 - tile : tile; }

// The work item of a CTA. Of a group of heads all that come first, then all that come next: each
// waits at its first query tile until the one before it is done there, the longer the more of a
// head start together.
ATT_FN HeadTile<int> tile_of_turns(int index, int tiles, int heads) {
  const int size = max_i32(1, kTilesOfGroup / tiles);
  return tile_by_group(index, tiles, head_groups(heads, GroupSizes<int>{size, 1}), spec::kHasMask);
}

// The turn of the key tile whose CTA visits the query tile before that of key tile `tile`;
// negative: none does. The whole warp's.
//
// A tile that kv_bounds() leaves out adds zeros, if its CTA visits the query tile at all, and the
// order of zeros does not matter.
ATT_FN int turn_before(const Context& c, int query_tile, int tile) {
  if constexpr (!spec::kHasMask) return tile - 1;
  using Walk = QueryWalk<kTileQ, kWarpgroups, false>;
  const int q0 = query_tile * kTileQ;
  const int end = tile_count(kv_bounds(c, q0, min_i32(q0 + kTileQ, c.q_len)).end, kTileKv);
#pragma unroll 1
  for (int first = tile + 1; first < end; first += Walk::kStep) {
    const int other = first + lane_index() / Walk::kParts;
    bool is_visited = false;
    if (other < end) {
      const int k0 = other * kTileKv;
      is_visited =
          Walk::tiles_of(c, k0).has(query_tile) &&
          Walk::class_of(c, query_tile, k0, lane_index() % Walk::kParts) != TileClass::kSkip;
    }
    const unsigned visited = ballot(is_visited);
    if (visited != 0) {
      const int found = first + highest_bit(visited & (0 - visited)) / Walk::kParts;
      return turn_of_tile(found, tile_count(c.kv_len, kTileKv));
    }
  }
  return -1;
}

// Of a query tile, where the CTA's n-th turn is at it; negative: there is none.
struct Turn {
  int index;  // in sum_turns
  int more;   // turns that follow
};
ATT_FN void store_turn(unsigned address, const Turn& turn) {
  store_shared_4(address, turn.index);
  store_shared_4(address + 4, turn.more);
}
ATT_FN Turn load_turn(unsigned address) {
  return {static_cast<int>(load_shared_4(address)), static_cast<int>(load_shared_4(address + 4))};
}

// A warp's, which reads what the stages say of their tiles, as the consumers do.
ATT_FN void take_turns(const BackwardParams& p, const SharedMemory& shared, int b, int h_kv,
                       int key_tile) {
  const bool leader = thread_index() % 32 == 0;
  RingPosition at;
  unsigned n = 0;
  Turn turn;
  do {
    mbarrier_wait(shared.q_full(at.stage), at.parity);
    const TileInfo info = load_tile_info(shared.tile(at.stage));
    if (leader) mbarrier_arrive(shared.q_empty(at.stage));
    at.advance();
    turn = {-1, 0};
    int before = -1;
    if (info.tile >= 0) {
      before = turn_before(Context{p, b, info.h, h_kv, p.q_len, p.kv_len}, info.tile, key_tile);
      turn = {(b * p.heads + info.h) * tile_count(p.q_len, kTileQ) + info.tile, info.more};
    }
    if (leader) {
      if (before >= 0) {
        while (load_acquire(p.sum_turns + turn.index) <= before) {
        }
      }
      mbarrier_wait(shared.turn_passed(n & 1), (n >> 1 & 1) ^ 1);
      store_turn(shared.turn(n & 1), turn);
      mbarrier_arrive(shared.turn_taken(n & 1));
    }
    sync_warp();
    ++n;
  } while (turn.more != 0);
}

// One thread's.
ATT_FN void pass_turns(const BackwardParams& p, const SharedMemory& shared, int key_tile) {
  const int own = turn_of_tile(key_tile, tile_count(p.kv_len, kTileKv));
  unsigned n = 0;
  while (true) {
    const unsigned parity = n >> 1 & 1;
    mbarrier_wait(shared.turn_taken(n & 1), parity);
    const Turn turn = load_turn(shared.turn(n & 1));
    if (turn.index < 0) return;
    mbarrier_wait(shared.turn_used(n & 1), parity);
    raise(p.sum_turns + turn.index, own + 1);
    mbarrier_arrive(shared.turn_passed(n & 1));
    if (turn.more == 0) return;
    ++n;
  }
}

}  // namespace sm90
}  // namespace att
