// Attention forward for queries of many heads whose V is the first columns of K: the mla family's
// kernel for Hopper, wgmma.
//
// A CTA has a piece of an item's keys; what its two warpgroups do with it: sm90_mla_loop.cuh. There
// is a kernel for keys that the tensor unit brings, and one for those that it cannot: with both
// loops in one kernel each was slower, by a tenth where launches are short, as instructions come
// from memory.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/piece_results.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/sm90_mla_loop.cuh"

namespace att {

// `map`: of the keys, kByMap.
template <bool kByMap>
ATT_FN void attend_own_piece(const ListKernelParams& params, const TensorMap* map) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = shared_address(shared_memory);
  SmallTable& table = *reinterpret_cast<SmallTable*>(shared_memory + kTableOffset);
  int& share = *reinterpret_cast<int*>(shared_memory + kFlagOffset);

  if constexpr (spec::kIsPacked) wait_for_launches_before();
  const PieceOfItem own = piece_at(params, block_index());
  const Item& item = own.item;
  if (item.rows() <= 0) return;
  const int kv_len = item.sequence.kv_len;
  const int group = warp_index() / 4;

  if (thread_index() == 0) init_slab_barriers<kByMap>(shared);
  load_rows_of_q(params, item, shared);
  cp_async_commit();
  const PieceKeys keys(units_of<plan::kWarps>(params, item, own.piece, own.pieces, table), table,
                       kv_len);
  sync_threads();  // barriers are there

  SlabCopies<kByMap> copies = {params, map, item, shared, {-1, 0}};
  begin_pairs(copies, keys);
  cp_async_wait<0>();  // of what is committed: Q
  fence_shared_for_async();
  sync_threads();

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  const Parts<kRows, kPartStride> part = {outputs, outputs + kRows * kPartStride, 1};
  HalfOfO half;
  half.clear();
  RowsOfP rows(params, item);
  attend(copies, keys, rows, half, shared, 0);
  if (group == 1) rows.leave_sum(shared + kFirstReferenceOffset);
  sync_threads();  // what results take the place of is free, and the other's sum is there
  if (group == 0) rows.store_statistics(part, shared + kFirstReferenceOffset);
  half.store(part, group);
  sync_threads();
  deliver(params, own, part, *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset),
          share);
}

ATT_KERNEL __launch_bounds__(kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params, ATT_GRID_CONSTANT TensorMap k_map) {
  attend_own_piece<true>(params, &k_map);
}

ATT_KERNEL __launch_bounds__(kThreads, 1)
    ATT_JOIN(ATT_KERNEL_NAME, _copies)(ATT_GRID_CONSTANT ListKernelParams params) {
  attend_own_piece<false>(params, nullptr);
}

}  // namespace att
