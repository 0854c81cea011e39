// The sm90a family's backward kernels of wide heads in five products: row statistics, then dK, dV
// and the sums of dQ by key tiles, then dQ.
//
// A CTA of the main kernel takes a tile of keys and walks the live query tiles of all query heads
// that share them, which a loader warp brings by TMA. One warpgroup makes S, P, dP and dS, with
// queries as wgmma's rows, and leaves P and dS in shared memory. Another one multiplies dO and P to
// dV, a third Q and dS to dK, both transposed, so that a tile may have as many keys as registers
// hold; dQ of the tile they share. While the first one computes elements the tensor cores have the
// others' products. The parts of dQ are added up in global memory, in fp32.
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
#include "templates/tile/learned_totals.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/sm90_group_walk.cuh"
#include "templates/tile/sm90_query_rows.cuh"
#include "templates/tile/sm90_wide_gradients.cuh"
#include "templates/tile/sm90_wide_layout.cuh"
#include "templates/tile/sm90_wide_scores.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

constexpr int kQueriesThreads = kDqParts * kWarpgroupThreads;

ATT_FN void init_barriers(const WideMemory& shared) {
  constexpr int kOne = 4;  // a warpgroup's warps
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared.q_full(stage), 1);
    mbarrier_init(shared.do_full(stage), 1);
    mbarrier_init(shared.q_empty(stage), 2 * kOne);
    mbarrier_init(shared.do_empty(stage), 2 * kOne);
  }
  for (unsigned n = 0; n < kScoreBuffers; ++n) {
    mbarrier_init(shared.p_full(n), kOne);
    mbarrier_init(shared.p_empty(n), kOne);
    mbarrier_init(shared.ds_full(n), kOne);
    mbarrier_init(shared.ds_empty(n), 2 * kOne);
  }
  mbarrier_init(shared.kv_full(), 1);
  mbarrier_init_fence();
}

ATT_FN void load_tiles(const BackwardParams& p, const KeyTile& item, const TensorMap* q_map,
                       const TensorMap* k_map, const TensorMap* v_map, const TensorMap* do_map,
                       const WideMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  if (leader) {
    mbarrier_arrive_expect(shared.kv_full(), (kQkSlabs + kVSlabs) * kKvSlabBytes);
    load_slabs<kQkSlabs>(shared.k(), kKvSlabBytes, k_map, shared.kv_full(), item.k0, item.h_kv,
                         item.b, CacheHint::kEvictFirst);
    load_slabs<kVSlabs>(shared.v(), kKvSlabBytes, v_map, shared.kv_full(), item.k0, item.h_kv,
                        item.b, CacheHint::kEvictFirst);
  }
  GroupWalk<QueryWalk<kTileQ, 1, false, false, false, kTileKv>> walk(p, item);
  TileInfo now, following;
  // An item without tiles is told by one that has no rows.
  bool has_tile = walk.next(now);
  if (!has_tile) now = {-1, item.h_kv * (p.heads / p.kv_heads), 0, 0};
  Ring<kStages> at;
  do {
    const bool more = has_tile && walk.next(following);
    now.more = more ? 1 : 0;
    const int row = now.tile < 0 ? p.q_len : now.tile * kTileQ;
    const long long first =
        first_padded_row(p, sequence_of(p, item.b), item.b, now.h) + (now.tile < 0 ? 0 : row);
    mbarrier_wait(shared.q_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.q_tile(at.stage), now);
      mbarrier_arrive_expect(shared.q_full(at.stage), kQkSlabs * kQSlabBytes + kReferenceBytes);
      load_slabs<kQkSlabs>(shared.q(at.stage), kQSlabBytes, q_map, shared.q_full(at.stage), row,
                           now.h, item.b, CacheHint::kEvictLast);
      bulk_load(shared.references(at.stage), p.row_references + first, kReferenceBytes,
                shared.q_full(at.stage));
    }
    mbarrier_wait(shared.do_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.do_tile(at.stage), now);
      mbarrier_arrive_expect(shared.do_full(at.stage), kVSlabs * kQSlabBytes + kDeltaBytes);
      load_slabs<kVSlabs>(shared.d_o(at.stage), kQSlabBytes, do_map, shared.do_full(at.stage), row,
                          now.h, item.b, CacheHint::kEvictLast);
      bulk_load(shared.deltas(at.stage), p.row_deltas + first, kDeltaBytes,
                shared.do_full(at.stage));
    }
    at.advance();
    has_tile = more;
    now = following;
  } while (has_tile);
}

template <bool kOfKeys>
ATT_FN void make_gradient(const BackwardParams& p, const KeyTile& item, const TensorMap* map,
                          const WideMemory& shared) {
  using Consumer = GradientConsumer<kOfKeys>;
  const Consumer consumer{p, shared, thread_index() % kWarpgroupThreads, item.b, item.k0};
  typename Consumer::Slab gradient[Consumer::kSlabsOfGradient];
  mbarrier_wait(shared.kv_full(), 0);
  consumer.make(gradient);
  // Others read K and V to their last tile.
  named_barrier_sync(kAllConsumers, kWarpgroups * kWarpgroupThreads);
  consumer.store(gradient, kOfKeys ? softmax_scale(p) : 1.0f, kOfKeys ? shared.k() : shared.v(),
                 map, item.h_kv);
}

}  // namespace sm90
}  // namespace att

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  att::let_next_launch_start();
  att::clear_learned_gradients(p);
  att::make_row_statistics(p);
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
  const WideMemory shared{shared_address(shared_memory)};
  if (thread_index() == 0) init_barriers(shared);
  wait_for_launches_before();
  sync_threads();
  const KeyTile item = key_tile_at(p, block_index(), kTileKv);
  const int warpgroup = shuffle_from(thread_index() / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    registers_release_to<kProducerRegisters>();
    if (shuffle_from(thread_index() / 32, 0) == 0) {
      load_tiles(p, item, &q_map, &k_map, &v_map, &do_map, shared);
    }
  } else if (warpgroup == 1) {
    registers_release_to<plan::kScoreRegisters>();
    mbarrier_wait(shared.kv_full(), 0);
    ScoresConsumer{p, shared, thread_index() % kWarpgroupThreads, item.b, item.h_kv, item.k0}.run();
    named_barrier_sync(kAllConsumers, kWarpgroups * kWarpgroupThreads);
  } else if (warpgroup == 2) {
    registers_acquire_to<plan::kGradientRegisters>();
    make_gradient<false>(p, item, &dv_map, shared);
  } else {
    registers_acquire_to<plan::kGradientRegisters>();
    make_gradient<true>(p, item, &dk_map, shared);
  }
}

ATT_KERNEL __launch_bounds__(att::sm90::kQueriesThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  using namespace att;
  using namespace att::sm90;
  wait_for_launches_before();
  const int tiles = tile_count(p.q_len, kTileQ);
  const int head = block_index() / tiles, tile = block_index() - head * tiles;
  const int b = head / p.heads, h = head - b * p.heads;
  const int part = thread_index() / kWarpgroupThreads;
  const int thread = thread_index() % kWarpgroupThreads;
  if (thread_index() < 32) {
    add_sink_gradient(p, sequence_of(p, b), b, h, tile * kTileQ,
                      min_i32((tile + 1) * kTileQ, p.q_len));
  }
  float sums[kDqNumbers / 4][4];
  const float* const from = p.d_q_sums + sums_offset(p, head, tile, part) + thread * 4;
#pragma unroll
  for (int j = 0; j < kDqNumbers / 4; ++j) load_global_l2_16(from + j * 512, sums[j]);
#pragma unroll
  for (int j = 0; j < kDqNumbers / 16; ++j) {
    store_query_rows(p, sequence_of(p, b), h, tile * kTileQ + thread / 32 * 16 + thread % 32 / 4,
                     part * kDqColumns + j * 32,
                     *reinterpret_cast<const float(*)[4][4]>(&sums[4 * j]));
  }
}
