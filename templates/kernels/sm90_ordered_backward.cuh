// The sm90a family's ordered backward kernels: row statistics, then dK and dV by key tiles, then dQ
// by query tiles. S and dP are computed twice, seven products in all, and no CTA adds to what
// another one has in memory: every sum has one order, that of walk_parts.cuh's parts of dK and dV
// too, and gradients are the same to the bit at each launch.
//
// A CTA of the keys' kernel takes 64 keys of a K/V head and walks the live query tiles of all query
// heads that share them; one of the queries' kernel takes 64 queries of a head for each consumer
// warpgroup and walks the live key tiles. A loader warp brings what is walked by TMA, and the
// warpgroups consume it.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/kernels/learned_totals.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/setmaxnreg.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_foreign_rows.cuh"
#include "templates/tile/sm90_group_walk.cuh"
#include "templates/tile/sm90_ordered_keys.cuh"
#include "templates/tile/sm90_ordered_keys_layout.cuh"
#include "templates/tile/sm90_ordered_listed.cuh"
#include "templates/tile/sm90_ordered_queries_cta.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

// ---- The keys' kernel. CTAs which run together share Q and dO in L2.

ATT_FN KeyTile key_tile(const BackwardParams& p, [[maybe_unused]] const KeysMemory& shared) {
  if constexpr (spec::kIsPacked) {
    const ListedTile tile = load_listed_tile(shared.listed());
    return {tile.b, tile.head, tile.first, tile.own, tile.part};
  }
  return key_tile_at(p, own_key_tile(p), kKeys);
}

ATT_FN void init_barriers(const KeysMemory& shared) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared.q_full(stage), 1);
    mbarrier_init(shared.do_full(stage), 1);
    mbarrier_init(shared.q_empty(stage), 4 * kWarpgroups);
    mbarrier_init(shared.do_empty(stage), 4 * kWarpgroups);
  }
  mbarrier_init(shared.kv_full(), 1);
  mbarrier_init(shared.slopes_full(), 4);
  mbarrier_init(shared.slopes_empty(), 4);
  if constexpr (spec::kIsPacked) mbarrier_init(shared.raw(), 2);
  mbarrier_init_fence();
}

// Of packed sequences, the loader's: K and V with rows of another one, of which dS would be made,
// and learned from.
ATT_FN void load_foreign_keys(const KeyTile& item, const TensorMap* k_map, const TensorMap* v_map,
                              const KeysMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  const int first = item.own.kv_first + item.k0, own_rows = item.own.kv_len - item.k0;
  if (leader) {
    mbarrier_arrive_expect(shared.raw(), qk_bytes(kKeys));
    load_slabs<kQkSlabs>(shared.k(), slab_bytes(kKeys), k_map, shared.raw(), first, item.h_kv, 0,
                         CacheHint::kEvictFirst);
    mbarrier_arrive_expect(shared.raw(), v_bytes(kKeys));
    load_slabs<kVSlabs>(shared.v(), slab_bytes(kKeys), v_map, shared.raw(), first, item.h_kv, 0,
                        CacheHint::kEvictFirst);
  }
  mbarrier_wait(shared.raw(), 0);
  clear_rows<kQkSlabs, kKeys>(shared.k(), own_rows);
  clear_rows<kVSlabs, kKeys>(shared.v(), own_rows);
  fence_shared_for_async();
  sync_warp();
  if (leader) mbarrier_arrive(shared.kv_full());
}

ATT_FN void load_keys_tiles(const BackwardParams& p, const KeyTile& item, const TensorMap* q_map,
                            const TensorMap* k_map, const TensorMap* v_map, const TensorMap* do_map,
                            const KeysMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  const int slice = spec::kIsPacked ? 0 : item.b;
  [[maybe_unused]] unsigned raw_parity = 0;
  bool has_foreign_keys = false;
  if constexpr (spec::kIsPacked) has_foreign_keys = item.k0 + kKeys > item.own.kv_len;
  if (has_foreign_keys) {
    load_foreign_keys(item, k_map, v_map, shared);
    raw_parity = 1;
  } else if (leader) {
    mbarrier_arrive_expect(shared.kv_full(), qk_bytes(kKeys) + v_bytes(kKeys));
    const int first = item.own.kv_first + item.k0;
    load_slabs<kQkSlabs>(shared.k(), slab_bytes(kKeys), k_map, shared.kv_full(), first, item.h_kv,
                         slice, CacheHint::kEvictFirst);
    load_slabs<kVSlabs>(shared.v(), slab_bytes(kKeys), v_map, shared.kv_full(), first, item.h_kv,
                        slice, CacheHint::kEvictFirst);
  }
  GroupWalk<QueryWalk<kTileQ, 1, false>> walk(p, item);
  TileInfo now, following;
  // An item without tiles is told by one that has no rows.
  bool has_tile = walk.next(now);
  if (!has_tile) now = {-1, item.h_kv * (p.heads / p.kv_heads), 0, 0};
  Ring<kStages> at;
  do {
    const bool more = has_tile && walk.next(following);
    now.more = more ? 1 : 0;
    const int row = now.tile < 0 ? p.q_len : item.own.q_first + now.tile * kTileQ;
    const int own_rows = now.tile < 0 ? kTileQ : item.own.q_len - now.tile * kTileQ;
    const bool has_foreign = spec::kIsPacked && own_rows < kTileQ;
    const long long first =
        first_padded_row(p, spec::kIsPacked ? item.own : sequence_of(p, item.b), item.b, now.h) +
        (now.tile < 0 ? 0 : now.tile * kTileQ);
    mbarrier_wait(shared.q_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.q_tile(at.stage), now);
      const unsigned barrier = has_foreign ? shared.raw() : shared.q_full(at.stage);
      mbarrier_arrive_expect(barrier, qk_bytes(kTileQ) + kReferenceBytes);
      load_slabs<kQkSlabs>(shared.q(at.stage), slab_bytes(kTileQ), q_map, barrier, row, now.h,
                           slice, CacheHint::kEvictLast);
      bulk_load(shared.references(at.stage),
                p.row_references + first * (kReferenceBytes / kTileQ / 4), kReferenceBytes,
                barrier);
    }
    mbarrier_wait(shared.do_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.do_tile(at.stage), now);
      const unsigned barrier = has_foreign ? shared.raw() : shared.do_full(at.stage);
      mbarrier_arrive_expect(barrier, v_bytes(kTileQ) + kDeltaBytes);
      load_slabs<kVSlabs>(shared.d_o(at.stage), slab_bytes(kTileQ), do_map, barrier, row, now.h,
                          slice, CacheHint::kEvictLast);
      bulk_load(shared.deltas(at.stage), p.row_deltas + first * (kDeltaBytes / kTileQ / 4),
                kDeltaBytes, barrier);
    }
    if constexpr (spec::kIsPacked) {
      if (has_foreign) {
        give_own_rows<kTileQ>(shared.raw(), raw_parity, own_rows, shared.q(at.stage),
                              shared.q_full(at.stage), shared.d_o(at.stage),
                              shared.do_full(at.stage));
        raw_parity ^= 1;
      }
    }
    at.advance();
    has_tile = more;
    now = following;
  } while (has_tile);
}

ATT_FN void make_key_gradients(const BackwardParams& p, const KeyTile& item,
                               const TensorMap* dk_map, const TensorMap* dv_map,
                               const KeysMemory& shared, int warpgroup) {
  const KeysConsumer consumer{p,        shared,    warpgroup, thread_index() % kWarpgroupThreads,
                              item.b,   item.h_kv, item.k0,   item.own,
                              item.part};
  mbarrier_wait(shared.kv_full(), 0);
  if (warpgroup == 0) {
    ValueGradient d_v;
    consumer.make_value_gradient(d_v);
    // The other one reads V to its last tile, and this one K.
    named_barrier_sync(kAllConsumers, kWarpgroups * kWarpgroupThreads);
    if constexpr (kCutsWalks) {
      if (consumer.leaves_part<spec::kHeadDimV>(d_v, p.d_v_sums)) return;
    }
    consumer.store<spec::kHeadDimV>(d_v, dropout_scale(Context{p, 0, 0, 0, 0, 0}), shared.v(),
                                    dv_map, p.d_v, p.d_v_stride);
  } else {
    KeyGradient d_k;
    consumer.make_key_gradient(d_k);
    named_barrier_sync(kAllConsumers, kWarpgroups * kWarpgroupThreads);
    if constexpr (kCutsWalks) {
      if (consumer.leaves_part<spec::kHeadDimQk>(d_k, p.d_k_sums)) return;
    }
    consumer.store<spec::kHeadDimQk>(d_k, softmax_scale(p), shared.k(), dk_map, p.d_k,
                                     p.d_k_stride);
  }
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  att::let_next_launch_start();
  att::clear_learned_gradients(p);
  att::make_row_statistics(p);
  // The launch behind this one waits for it alone, but reads the list of the one in front, too.
  if constexpr (att::spec::kIsPacked) att::wait_for_launches_before();
}

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::BackwardKernelParams p,
                    ATT_GRID_CONSTANT att::TensorMap q_map, ATT_GRID_CONSTANT att::TensorMap k_map,
                    ATT_GRID_CONSTANT att::TensorMap v_map, ATT_GRID_CONSTANT att::TensorMap do_map,
                    ATT_GRID_CONSTANT att::TensorMap dk_map,
                    ATT_GRID_CONSTANT att::TensorMap dv_map) {
  using namespace att;
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const KeysMemory shared{shared_address(shared_memory)};
  if (thread_index() < 32) store_halves(shared.halves());
  if (thread_index() == 0) init_barriers(shared);
  wait_for_launches_before();
  let_next_launch_start();  // which does not wait for this one: see make_query_gradients()
  if constexpr (spec::kIsPacked) {
    if (thread_index() == 0) {
      store_listed_tile(shared.listed(), find_listed_keys(p, block_index(), kKeys));
    }
  }
  sync_threads();
  const KeyTile item = key_tile(p, shared);
  if (spec::kIsPacked && item.b < 0) return;
  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0) - 1;
  if (warpgroup < 0) {
    registers_release_to<kProducerRegisters>();
    if (shuffle_from(thread_index() / 32, 0) == 0) {
      load_keys_tiles(p, item, &q_map, &k_map, &v_map, &do_map, shared);
    }
  } else {
    registers_acquire_to<kConsumerRegisters>();
    make_key_gradients(p, item, &dk_map, &dv_map, shared, warpgroup);
  }
}

ATT_KERNEL __launch_bounds__(att::sm90::kQueryThreads, 1)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardKernelParams p,
                                        ATT_GRID_CONSTANT att::TensorMap q_map,
                                        ATT_GRID_CONSTANT att::TensorMap k_map,
                                        ATT_GRID_CONSTANT att::TensorMap v_map,
                                        ATT_GRID_CONSTANT att::TensorMap do_map) {
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const QueriesMemory shared{att::shared_address(shared_memory)};
  make_query_gradients(p, &q_map, &k_map, &v_map, &do_map, shared);
}
