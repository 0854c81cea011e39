// Attention forward for few queries on paged keys where sequences may begin with the same pages:
// the decode family's kernel of specs with `shared_prefixes`, mma.sync.
//
// As templates/kernels/decode_forward.cuh, but an item's rows may be of several sequences, which
// share the keys that it walks (Juravsky et al., "Hydragen", 2024; Zhu et al., "RelayAttention",
// 2024). Every row keeps the coordinates of its own sequence. What the pieces of a prefix found
// waits beside what those of each sequence's own keys found; whoever comes last for a sequence
// merges them, those of the prefix first.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_warp.cuh"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/shared_results.cuh"
#include "templates/tile/shared_rows.cuh"
#include "templates/tile/shared_units.cuh"

namespace att {

constexpr int kQOffset = plan::kWarps * (kRingBytes > kPartBytes ? kRingBytes : kPartBytes);
using ItemWeights = Weights<plan::kWarps, kRows>;
constexpr int kWeightsOffset = kQOffset + kRows * kDimQk * 2;
static_assert(static_cast<int>(sizeof(ResultWeights)) <= plan::kSharedBytes);
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= plan::kSharedBytes);

ATT_KERNEL __launch_bounds__(kThreads, plan::kMinCtas)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  __shared__ SharedUnitTable table;
  __shared__ SharedTable members;
  const unsigned shared = shared_address(shared_memory);

  wait_for_launches_before();
  const SharedWork work = shared_work(params, block_index(), members);
  if (work.rows <= 0) return;

  load_shared_q(params, members, work.rows, shared + kQOffset);
  cp_async_commit();
  const SharedUnits units = shared_units<plan::kWarps>(params, members, work, table);

  const unsigned ring = shared + warp_index() * kRingBytes;
  const int unit_shift = highest_bit(units.keys / plan::kStepKeys);
  const int steps = units.count << unit_shift;
  // The keys of a step.
  const auto keys_at = [&](int step) {
    const Unit unit = shared_unit_at(units, table, step >> unit_shift);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * plan::kStepKeys, unit.full};
  };
  // Of the first sequence, which has the same pages as the others.
  const PagedSequence from = {page_table_of(params), members.members[0].b, work.h_kv, work.end};
  using Pages = PageSteps<plan::kStepKeys>;
  const auto look_up = [&](Pages& pages, int step) {
    if (step < steps) pages.look_up(from, keys_at(step).k0);
  };
  const auto load_pages = [&](const Pages& pages, int step, int stage) {
    if (step < steps) {
      const int k0 = keys_at(step).k0;
      const unsigned to = ring + stage * kStageBytes;
      pages.load<spec::kHeadDimQk>(to, params.k, params.k_stride, from, k0);
      pages.load<spec::kHeadDimV>(to + kKBytes, params.v, params.v_stride, from, k0);
    }
    cp_async_commit();
  };

  int step = warp_index();
  Pages next;
  {
    Pages first[plan::kStages - 1];
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) look_up(first[i], step + i * plan::kWarps);
    look_up(next, step + (plan::kStages - 1) * plan::kWarps);
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) load_pages(first[i], step + i * plan::kWarps, i);
  }
  cp_async_wait<plan::kStages - 1>();
  sync_threads();
  WarpPartOf<SharedLaneRows> part(params, members, work);
  part.queries.keep(shared + kQOffset);
  int stage = 0;
#pragma unroll 1
  for (; step < steps; step += plan::kWarps) {
    cp_async_wait<plan::kStages - 2>();
    sync_warp();  // this step's keys have come for all lanes, and all have left the stage before
    load_pages(next, step + (plan::kStages - 1) * plan::kWarps,
               stage == 0 ? plan::kStages - 1 : stage - 1);
    look_up(next, step + plan::kStages * plan::kWarps);
    const Unit keys = keys_at(step);
    part.visit(ring + stage * kStageBytes, keys.k0, !keys.full);
    stage = stage + 1 == plan::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  sync_threads();  // the rings are free

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  ItemWeights& weights = *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset);
  const Parts<kRows, kPartStride> warps = {outputs, outputs + plan::kWarps * kRows * kPartStride,
                                           plan::kWarps};
  part.store(warps);
  sync_threads();
  weigh<plan::kWarps>(warps, 0, work.rows, weights);
  if (!work.is_prefix && members.members[0].results() == 1) {
    for_each_four_of_rows(0, work.rows, [&](int row, int column) {
      write_shared_output(params, members.rows[row], work.h_kv, column,
                          merge(warps, weights, row, column), weights.reference[row],
                          weights.sum[row]);
    });
    return;
  }

  const SharedResults results(params, work.h_kv);
  for_each_four_of_rows(0, work.rows, [&](int row, int column) {
    store_result(results.output(work.result, row) + column, merge(warps, weights, row, column));
    if (column == 0) {
      results.statistic(work.result, row)[0] = weights.reference[row];
      results.statistic(work.result, row)[1] = weights.sum[row];
    }
  });
  sync_threads();
  if (thread_index() < work.members) {
    const SharedMember& member = members.members[thread_index()];
    members.is_last[thread_index()] =
        arrive(shared_arrivals(params, member, work.h_kv)) == member.results() - 1;
  }
  sync_threads();
  merge_results(params, members, work, *reinterpret_cast<ResultWeights*>(shared_memory));
}

}  // namespace att
