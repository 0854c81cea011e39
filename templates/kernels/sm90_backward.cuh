// The sm90a backward kernels: row statistics, then dK, dV and the sums of dQ, then dQ.
//
// A CTA of the main kernel takes a tile of keys, 64 for each consumer warpgroup, and walks the live
// query tiles of all query heads that share the keys, which a loader warp brings by TMA. A
// warpgroup computes S^T and dP^T of its keys (the keys are wgmma's rows), so that P^T and dS^T
// are register operands of dV += P^T dO and dK += dS^T Q. dQ needs dS of all keys of the tile: the
// warpgroups leave it in shared memory and multiply with K a tile later, when the others' part has
// long come: nobody waits for anybody within a tile. The parts of dQ are added up in global memory
// in fp32, in the order of the accumulators; templates/tile/sm90_backward_sums.cuh.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/kernels/learned_totals.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/backward_scores.cuh"
#include "templates/tile/learned_gradients.cuh"
#include "templates/tile/listed_parts.cuh"
#include "templates/tile/sm90_backward_consumer.cuh"
#include "templates/tile/sm90_backward_keys.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_packed_rows.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

ATT_KERNEL __launch_bounds__(att::kRowThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _rows)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  att::let_next_launch_start();
  att::clear_learned_gradients(p);
  att::make_row_statistics(p, att::sm90::HasSums{});
  // The launch behind this one waits for it alone, but reads the list of the one in front, too.
  if constexpr (att::spec::kIsPacked) att::wait_for_launches_before();
}

ATT_KERNEL __launch_bounds__(att::sm90::kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT att::BackwardKernelParams p,
                    ATT_GRID_CONSTANT att::TensorMap q_map, ATT_GRID_CONSTANT att::TensorMap k_map,
                    ATT_GRID_CONSTANT att::TensorMap v_map, ATT_GRID_CONSTANT att::TensorMap do_map,
                    ATT_GRID_CONSTANT att::TensorMap dk_map,
                    ATT_GRID_CONSTANT att::TensorMap dv_map) {
  using namespace att::sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedMemory shared{att::shared_address(shared_memory)};
  make_key_gradients<true>(p, &q_map, &k_map, &v_map, &do_map, &dk_map, &dv_map, shared);
}

ATT_KERNEL __launch_bounds__(att::sm90::kQueriesThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _queries)(ATT_GRID_CONSTANT att::BackwardKernelParams p) {
  using namespace att::sm90;
  if constexpr (!kStartsQueriesEarly) att::wait_for_launches_before();
  int index = att::block_index();
  if constexpr (att::spec::kIsPacked) {
    if constexpr (att::kCutsWalks) {
      const int ctas = att::listed_sum_ctas(p);
      if (index < ctas) {
        att::add_parts_of_listed_keys<kQueriesThreads>(p, index);
        return;
      }
      index -= ctas;
    }
    convert_packed_rows(p, index);
    return;
  }
  const int group = p.heads / p.kv_heads;
  // Of the K/V heads.
  const int first = kLoadsKeysApart ? 0 : att::sum_heads(p).converted;
  const int shares = att::tile_count(p.q_len, kTileQ) * kDqShares;
  if constexpr (att::kCutsWalks) {
    const int ctas = att::sum_ctas<kQueriesThreads>(p);
    if (index < ctas) {
      att::add_parts_of_keys<kQueriesThreads>(p, index);
      return;
    }
    index -= ctas;
  }
  const int number = index * kDqShares + att::thread_index() / kWarpgroupThreads;
  const int head = first * group + number / shares;  // of the query heads
  const int b = head / p.heads, h = head - b * p.heads, kv_head = head / group;
  if constexpr (kStartsQueriesEarly) wait_for_head(p, kv_head);
  const int share = number % shares;
  const int sums = sums_head(p, kv_head) + head - kv_head * group;
  if constexpr (kLoadsKeysApart) {
    convert_shares<1>(p, att::sequence_of(p, b), b, h, sums, share, 1, share + 1, false,
                      TileHasSums{p, b});
  } else {
    convert_shares<1>(p, att::sequence_of(p, b), b, h, sums, share, 1, share + 1, false);
  }
  // The launch does not end before the one in front, whose CTAs all run.
  if (kStartsQueriesEarly && att::block_index() == att::block_count() - 1) {
    att::wait_for_launches_before();
  }
}
