// The sm90a family's ordered queries' kernel: a CTA takes the queries of a head, 64 for each
// consumer warpgroup, and walks the live key tiles, which a loader warp brings by TMA. Where walks
// of key tiles were cut the last CTAs add up what the parts left.
#pragma once

#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_order.cuh"
#include "templates/tile/learned_totals.cuh"
#include "templates/tile/listed_parts.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_foreign_rows.cuh"
#include "templates/tile/sm90_ordered_listed.cuh"
#include "templates/tile/sm90_ordered_queries.cuh"
#include "templates/tile/sm90_ordered_queries_layout.cuh"
#include "templates/tile/tile_walk.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

ATT_FN void init_barriers(const QueriesMemory& shared) {
  for (int stage = 0; stage < QueriesMemory::kKStages; ++stage) {
    mbarrier_init(shared.k_full(stage), 1);
    mbarrier_init(shared.k_empty(stage), 4 * kQueryWarpgroups);
  }
  for (int stage = 0; stage < QueriesMemory::kVStages; ++stage) {
    mbarrier_init(shared.v_full(stage), 1);
    mbarrier_init(shared.v_empty(stage), 4 * kQueryWarpgroups);
  }
  mbarrier_init(shared.rows_full(), 1);
  if constexpr (spec::kIsPacked) mbarrier_init(shared.raw(), 2);
  mbarrier_init_fence();
}

// Of all heads; of packed sequences as many as their list has room for.
ATT_FN int query_tiles(const BackwardParams& p) {
  if constexpr (spec::kIsPacked) return sequence_item_count(p.q_len, p.batch, kRows) * p.heads;
  return tile_count(p.q_len, kRows) * p.batch * p.heads;
}

// What a CTA has: rows from q0 on of head h of a sequence.
struct QueryTile {
  int b, h, q0;
  Sequence own = {};  // of packed sequences
};
ATT_FN QueryTile query_tile(const BackwardParams& p, int index,
                            [[maybe_unused]] const QueriesMemory& shared) {
  if constexpr (spec::kIsPacked) {
    const ListedTile tile = load_listed_tile(shared.listed());
    return {tile.b, tile.head, tile.first, tile.own};
  }
  const auto [head, tile] =
      backward_tile(index, tile_count(p.q_len, kRows), p.batch * p.heads, true);
  const int b = head / p.heads;
  return {b, head - b * p.heads, tile * kRows};
}

ATT_FN void load_queries_tiles(const BackwardParams& p, const QueryTile& item,
                               const TensorMap* q_map, const TensorMap* k_map,
                               const TensorMap* v_map, const TensorMap* do_map,
                               const QueriesMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  const int b = item.b, h = item.h, q0 = item.q0;
  const int h_kv = h / (p.heads / p.kv_heads);
  const int slice = spec::kIsPacked ? 0 : b;
  if (leader) {
    // Rows of another sequence give a gradient that nobody stores.
    const int first = item.own.q_first + q0;
    mbarrier_arrive_expect(shared.rows_full(), qk_bytes(kRows) + v_bytes(kRows));
    load_slabs<kQkSlabs>(shared.q(), slab_bytes(kRows), q_map, shared.rows_full(), first, h, slice,
                         CacheHint::kEvictFirst);
    load_slabs<kVSlabs>(shared.d_o(), slab_bytes(kRows), do_map, shared.rows_full(), first, h,
                        slice, CacheHint::kEvictFirst);
  }
  const Context c = item_context(p, item.own, b, h, h_kv);
  const int q1 = min_i32(q0 + kRows, queries_of(p, item.own));
  using Walk = TileWalk<kStepKeys>;
  Walk walk(c, q0, q1);
  Ring<QueriesMemory::kKStages> at;
  Ring<QueriesMemory::kVStages> at_v;
  int tile = 0;
  while (tile != Walk::kEnd) {
    tile = walk.next(c, q0, q1);
    const int k0 = tile / 2 * kStepKeys, first = item.own.kv_first + k0;
    const bool has_foreign =
        spec::kIsPacked && tile != Walk::kEnd && k0 + kStepKeys > item.own.kv_len;
    mbarrier_wait(shared.k_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_shared_4(shared.tile(at.stage), tile);
      if (tile == Walk::kEnd) {
        mbarrier_arrive(shared.k_full(at.stage));
        return;
      }
      const unsigned barrier = has_foreign ? shared.raw() : shared.k_full(at.stage);
      mbarrier_arrive_expect(barrier, qk_bytes(kStepKeys));
      load_slabs<kQkSlabs>(shared.k(at.stage), slab_bytes(kStepKeys), k_map, barrier, first, h_kv,
                           slice, CacheHint::kEvictLast);
    }
    if (tile == Walk::kEnd) return;
    mbarrier_wait(shared.v_empty(at_v.stage), at_v.parity ^ 1);
    if (leader) {
      const unsigned barrier = has_foreign ? shared.raw() : shared.v_full(at_v.stage);
      mbarrier_arrive_expect(barrier, v_bytes(kStepKeys));
      load_slabs<kVSlabs>(shared.v(at_v.stage), slab_bytes(kStepKeys), v_map, barrier, first, h_kv,
                          slice, CacheHint::kEvictLast);
    }
    if constexpr (spec::kIsPacked) {
      if (has_foreign) {
        give_own_rows<kStepKeys>(shared.raw(), 0, item.own.kv_len - k0, shared.k(at.stage),
                                 shared.k_full(at.stage), shared.v(at_v.stage),
                                 shared.v_full(at_v.stage));
      }
    }
    at.advance();
    at_v.advance();
  }
}

// The launch does not end before the one in front of it: one of its CTAs waits.
ATT_FN void wait_in_last_cta() {
  if (block_index() == block_count() - 1) wait_for_launches_before();
}

// A CTA's. dQ needs what `_rows` left, not dK and dV. The keys' CTAs let this launch start when
// they have waited for `_rows` themselves, so a CTA may run beside the last of them, on processors
// that they leave idle, as soon as it starts: what `_rows` wrote was in memory before this launch
// could begin. Those that add up parts wait.
ATT_FN void make_query_gradients(const BackwardParams& p, const TensorMap* q_map,
                                 const TensorMap* k_map, const TensorMap* v_map,
                                 const TensorMap* do_map, const QueriesMemory& shared) {
  if (thread_index() == 0) init_barriers(shared);
  const int index = block_index();
  if constexpr (kCutsWalks) {
    // Behind the others: queries' CTAs may be few, and take a processor each.
    const int sums = index - query_tiles(p);
    if (sums >= 0) {
      wait_for_launches_before();
      if constexpr (spec::kIsPacked) {
        add_parts_of_listed_keys<kQueryThreads>(p, sums);
      } else {
        add_parts_of_keys<kQueryThreads>(p, sums);
      }
      return;
    }
  }
  if constexpr (spec::kIsPacked) {
    if (thread_index() == 0) {
      store_listed_tile(shared.listed(), find_listed_queries(p, index, kRows));
    }
  }
  sync_threads();
  const QueryTile item = query_tile(p, index, shared);
  if (spec::kIsPacked && item.b < 0) {
    wait_in_last_cta();
    return;
  }
  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<plan::kQueryProducerRegisters>();
    const int warp = shuffle_from(thread_index() / 32, 0);
    if (warp == 0) load_queries_tiles(p, item, q_map, k_map, v_map, do_map, shared);
    if (warp == 1) {
      add_sink_gradient(p, spec::kIsPacked ? item.own : sequence_of(p, item.b), item.b, item.h,
                        item.q0, min_i32(item.q0 + kRows, queries_of(p, item.own)));
    }
    if (warp == 2) wait_in_last_cta();
  } else {
    registers_acquire_to<plan::kQueryConsumerRegisters>();
    QueriesConsumer{p,      shared, warpgroup, thread_index() % kWarpgroupThreads,
                    item.b, item.h, item.q0,   item.own}
        .run();
  }
}

}  // namespace sm90
}  // namespace att
