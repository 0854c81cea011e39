// What a CTA of the decode family makes of a piece of an item's keys.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/decode_warp.cuh"
#include "templates/tile/load.cuh"
#include "templates/tile/page_rows.cuh"
#include "templates/tile/piece_results.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// In the end the warps' parts take the place of the rings, and behind them what a CTA of a cluster
// is sent.
constexpr int kPartsBytes =
    plan::kWarps * kPartBytes +
    (plan::kInCluster ? ClusterResults<plan::kPieces, kRows, spec::kHeadDimV>::kBytes : 0);
constexpr int kRingsBytes = plan::kWarps * kRingBytes;
constexpr int kQOffset = kRingsBytes > kPartsBytes ? kRingsBytes : kPartsBytes;
constexpr int kMostParts = plan::kPieces > plan::kWarps ? plan::kPieces : plan::kWarps;
using ItemWeights = Weights<kMostParts, kRows>;
constexpr int kWeightsOffset = kQOffset + kRows * kDimQk * 2;
static_assert(kQOffset % 128 == 0);
static_assert(kWeightsOffset + static_cast<int>(sizeof(ItemWeights)) <= plan::kSharedBytes);

// The whole CTA calls it. The item has rows; `shares`: its units that are the piece's; `table` and
// `share` are in shared memory.
ATT_FN void attend_piece(const ListKernelParams& params, const PieceOfItem& own,
                         const UnitShare& shares, unsigned char* shared_memory, UnitTable& table,
                         int& share) {
  const unsigned shared = shared_address(shared_memory);
  const Item& item = own.item;
  const Sequence& sequence = item.sequence;

  const auto begin_queries = [&]() {
    load_q<kDimQk>(params, item, shared + kQOffset);
    cp_async_commit();
  };
  if constexpr (!spec::kIsPaged) begin_queries();
  const Units units = units_of_piece(params, item, shares, table);

  const unsigned ring = shared + warp_index() * kRingBytes;
  const int unit_shift = highest_bit(units.keys / plan::kStepKeys);
  const int steps = units.count << unit_shift;
  // The keys of a step.
  const auto keys_at = [&](int step) {
    const Unit unit = unit_at(units, table, step >> unit_shift, sequence.kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * plan::kStepKeys, unit.full};
  };
  const auto load = [&](int step, int stage) {
    if (step < steps) {
      const int k0 = keys_at(step).k0;
      const int valid = sequence.kv_len - k0;
      const unsigned to = ring + stage * kStageBytes;
      const auto rows = [&](const void* tensor, const Strides& stride) {
        return static_cast<const char*>(tensor) +
               2 * key_offset(sequence, Cache::copied(stride), item.h_kv, k0);
      };
      load_rows<plan::kStepKeys, Cache::copied(spec::kHeadDimQk), 32>(
          to, rows(params.k, params.k_stride), Cache::copied(params.k_stride).seq * 2, valid,
          lane_index());
      load_rows<plan::kStepKeys, Cache::copied(spec::kHeadDimV), 32>(
          to + kKBytes, rows(params.v, params.v_stride), Cache::copied(params.v_stride).seq * 2,
          valid, lane_index());
      if constexpr (Cache::kScaleBytes > 0) {
        Cache::load_scales(params, to + kScalesOffset, item.h_kv,
                           lane_index() % plan::kStepKeys < valid ? sequence.slice : -1);
      }
    }
    cp_async_commit();
  };
  // The same in two steps of paged keys: where they lie is looked up some time before it is needed.
  using Pages = PageSteps<plan::kStepKeys>;
  const auto look_up = [&](Pages& pages, int step) {
    if (step >= steps) return;
    pages.look_up({page_table_of(params), item.b, item.h_kv, sequence.kv_len}, keys_at(step).k0);
  };
  const auto load_pages = [&](const Pages& pages, int step, int stage) {
    if (step < steps) {
      const PagedSequence from = {page_table_of(params), item.b, item.h_kv, sequence.kv_len};
      const int k0 = keys_at(step).k0;
      const unsigned to = ring + stage * kStageBytes;
      pages.load<Cache::copied(spec::kHeadDimQk)>(to, params.k, Cache::copied(params.k_stride),
                                                  from, k0);
      pages.load<Cache::copied(spec::kHeadDimV)>(to + kKBytes, params.v,
                                                 Cache::copied(params.v_stride), from, k0);
      if constexpr (Cache::kScaleBytes > 0) {
        Cache::load_scales(params, to + kScalesOffset, item.h_kv,
                           checked_key(from.table, pages.ahead).page);
      }
    }
    cp_async_commit();
  };

  int step = warp_index();
  [[maybe_unused]] Pages next;
  if constexpr (spec::kIsPaged) {
    Pages first[plan::kStages];
#pragma unroll
    for (int i = 0; i < plan::kStages; ++i) look_up(first[i], step + i * plan::kWarps);
    begin_queries();  // while the table is read

    // A loop, as its instructions come from memory too.
#pragma unroll 1
    for (int i = 0; i < plan::kStages - 1; ++i) {
      load_pages(first[0], step + i * plan::kWarps, i);
#pragma unroll
      for (int j = 0; j < plan::kStages - 1; ++j) first[j] = first[j + 1];
    }
    next = first[0];
  } else {
#pragma unroll
    for (int i = 0; i < plan::kStages - 1; ++i) load(step + i * plan::kWarps, i);
  }
  expect_arrivals(params, own);
  cp_async_wait<plan::kStages - 1>();
  sync_threads();
  WarpPart part(params, item);
  part.queries.keep(shared + kQOffset);
  int stage = 0;
#pragma unroll 1
  for (; step < steps; step += plan::kWarps) {
    cp_async_wait<plan::kStages - 2>();
    sync_warp();  // this step's keys have come for all lanes, and all have left the stage before
    if constexpr (spec::kIsPaged) {
      load_pages(next, step + (plan::kStages - 1) * plan::kWarps,
                 stage == 0 ? plan::kStages - 1 : stage - 1);
      look_up(next, step + plan::kStages * plan::kWarps);
    } else {
      load(step + (plan::kStages - 1) * plan::kWarps, stage == 0 ? plan::kStages - 1 : stage - 1);
    }
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
  begin_delivery(own, warps);
  part.store(warps);
  sync_threads();
  deliver(params, own, warps, weights, share);
}

}  // namespace att
