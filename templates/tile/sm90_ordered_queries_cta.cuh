// The sm90a family's ordered queries' kernel: a CTA takes the queries of a head, 64 for each
// consumer warpgroup, and walks the live key tiles, which a loader warp brings by TMA. Where walks
// of key tiles were cut the first CTAs add up what the parts left.
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
#include "templates/tile/sm90_backward_parts.cuh"
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
  mbarrier_init_fence();
}

ATT_FN void load_queries_tiles(const BackwardParams& p, int b, int h, int q0,
                               const TensorMap* q_map, const TensorMap* k_map,
                               const TensorMap* v_map, const TensorMap* do_map,
                               const QueriesMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  const int h_kv = h / (p.heads / p.kv_heads);
  if (leader) {
    mbarrier_arrive_expect(shared.rows_full(), qk_bytes(kRows) + v_bytes(kRows));
    load_slabs<kQkSlabs>(shared.q(), slab_bytes(kRows), q_map, shared.rows_full(), q0, h, b,
                         CacheHint::kEvictFirst);
    load_slabs<kVSlabs>(shared.d_o(), slab_bytes(kRows), do_map, shared.rows_full(), q0, h, b,
                        CacheHint::kEvictFirst);
  }
  const Context c{p, b, h, h_kv, p.q_len, p.kv_len};
  const int q1 = min_i32(q0 + kRows, p.q_len);
  using Walk = TileWalk<kStepKeys>;
  Walk walk(c, q0, q1);
  Ring<QueriesMemory::kKStages> at;
  Ring<QueriesMemory::kVStages> at_v;
  int tile = 0;
  while (tile != Walk::kEnd) {
    tile = walk.next(c, q0, q1);
    const int k0 = tile / 2 * kStepKeys;
    mbarrier_wait(shared.k_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_shared_4(shared.tile(at.stage), tile);
      if (tile == Walk::kEnd) {
        mbarrier_arrive(shared.k_full(at.stage));
        return;
      }
      mbarrier_arrive_expect(shared.k_full(at.stage), qk_bytes(kStepKeys));
      load_slabs<kQkSlabs>(shared.k(at.stage), slab_bytes(kStepKeys), k_map,
                           shared.k_full(at.stage), k0, h_kv, b, CacheHint::kEvictLast);
    }
    if (tile == Walk::kEnd) return;
    mbarrier_wait(shared.v_empty(at_v.stage), at_v.parity ^ 1);
    if (leader) {
      mbarrier_arrive_expect(shared.v_full(at_v.stage), v_bytes(kStepKeys));
      load_slabs<kVSlabs>(shared.v(at_v.stage), slab_bytes(kStepKeys), v_map,
                          shared.v_full(at_v.stage), k0, h_kv, b, CacheHint::kEvictLast);
    }
    at.advance();
    at_v.advance();
  }
}

// A CTA's.
ATT_FN void make_query_gradients(const BackwardParams& p, const TensorMap* q_map,
                                 const TensorMap* k_map, const TensorMap* v_map,
                                 const TensorMap* do_map, const QueriesMemory& shared) {
  if (thread_index() == 0) init_barriers(shared);
  int index = block_index();
  if constexpr (kCutsWalks) {
    wait_for_launches_before();
    const int ctas = sum_ctas<kQueryThreads>(p);
    if (index < ctas) {
      add_parts_of_keys<kQueryThreads>(p);
      return;
    }
    index -= ctas;
  }
  sync_threads();
  const auto [head, tile] =
      backward_tile(index, tile_count(p.q_len, kRows), p.batch * p.heads, true);
  const int b = head / p.heads;
  const int h = head - b * p.heads;
  const int q0 = tile * kRows;
  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<plan::kQueryProducerRegisters>();
    const int warp = shuffle_from(thread_index() / 32, 0);
    if (warp == 0) load_queries_tiles(p, b, h, q0, q_map, k_map, v_map, do_map, shared);
    if (warp == 1) {
      add_sink_gradient(p, sequence_of(p, b), b, h, q0, min_i32(q0 + kRows, p.q_len));
    }
  } else {
    registers_acquire_to<plan::kQueryConsumerRegisters>();
    QueriesConsumer{p, shared, warpgroup, thread_index() % kWarpgroupThreads, b, h, q0}.run();
  }
}

}  // namespace sm90
}  // namespace att
