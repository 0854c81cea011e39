// Attention forward for queries of many heads whose V is the first columns of K: the mla family's
// kernel for Hopper, wgmma.
//
// 64 rows are as many as wgmma multiplies at once, and O of 64 rows is as much as the registers of
// two warpgroups hold: each has half of its columns. Keys come in pairs of tiles, and each
// warpgroup makes P of one of them, so that one multiplies while the other exponentiates (the
// "seesaw" of FlashMLA, DeepSeek 2025):
//
//   first                                      second
//   S0 = Q K0^T                                S1 = Q K1^T
//   references r0 of the rows         -> r0 ->
//   P0 by r0                          <- r1 <- references r1 >= r0 of the rows
//   its half of O, to r0, += P0 V0             P1 by r1
//   P0 from r0 to r1                  -> P0 ->
//   its half of O, to r1              <- P1 <- its half of O, to r1, += P1 V1
//     += P1 V1                                   += P0 V0
//
// While one pair is multiplied the next one takes its place slab by slab (sm90_mla_slabs.cuh). An
// odd number of tiles is followed by one without keys.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/key_tiles.cuh"
#include "templates/tile/piece_results.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/sm90_mla.cuh"
#include "templates/tile/sm90_mla_rows.cuh"
#include "templates/tile/sm90_mla_slabs.cuh"

namespace att {

// Starts the whole CTA's copy of the item's queries, rows behind the last as zeros.
ATT_FN void load_rows_of_q(const ForwardParams& p, const Item& item, unsigned shared) {
  using Tiles = KeyTiles<kRows, kDimQk, kThreads, SlabRows<kRows>>;
#pragma unroll
  for (int pass = 0; pass < Tiles::kPasses; ++pass) {
    const int row = Tiles::row(pass);
    const bool valid = row < item.rows();
    const int h = valid ? item.h0 + row / item.queries() : item.h0;
    const int q = valid ? item.q0 + row % item.queries() : item.q0;
    Tiles::copy_row(
        shared, row,
        static_cast<const char*>(p.q) + 2 * query_offset(item.sequence, p.q_stride, h, q), valid);
  }
}

ATT_KERNEL __launch_bounds__(kThreads, 1)
    ATT_KERNEL_NAME(ATT_GRID_CONSTANT ListKernelParams params) {
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

  if (thread_index() == 0) init_slab_barriers(shared);
  load_rows_of_q(params, item, shared);
  cp_async_commit();
  const Units units = units_of<plan::kWarps>(params, item, own.piece, own.pieces, table);
  const int unit_shift = highest_bit(units.keys / kKeys);
  const int steps = units.count << unit_shift;
  const int pairs = (steps + 1) / 2;
  const auto keys_at = [&](int step) {
    if (step >= steps) return Unit{kv_len, false};
    const Unit unit = unit_at(units, table, step >> unit_shift, kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * kKeys, unit.full};
  };
  sync_threads();  // barriers are there

  SlabCopies copies = {params, item, shared, {-1, 0}};
  const auto look_up = [&](int pair) {
    copies.look_up(keys_at(2 * pair).k0, keys_at(2 * pair + 1).k0);
  };
  constexpr int kFirstEarly = early_slabs(0), kSecondEarly = early_slabs(1);
  look_up(0);
  if (pairs > 0) {
    if (group == 0) {
      copies.load<0, 0, kFirstEarly>(keys_at(0).k0);
      copies.load<1, kSecondEarly, kSlabs>(keys_at(1).k0);
    } else {
      copies.load<0, kFirstEarly, kSlabs>(keys_at(0).k0);
      copies.load<1, 0, kSecondEarly>(keys_at(1).k0);
    }
  }
  look_up(1);
  cp_async_wait<0>();  // of what is committed: Q
  fence_shared_for_async();
  sync_threads();

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  const Parts<kRows, kPartStride> part = {outputs, outputs + kRows * kPartStride, 1};
  HalfOfO half;
  half.clear();
  RowsOfP rows(params, item);
  const float as_they_are[2] = {1.0f, 1.0f};

  if (group == 0) {
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
      const bool goes_on = pair + 1 < pairs;
      multiply_keys<0>(rows.s, shared, pair & 1);
      const Unit keys = keys_at(2 * pair);
      rows.finish_scores(keys.k0, !keys.full);
      float highest[2], to_first[2], to_both[2];  // references; by how much sums shrink
      rows.find_highest(highest);
      rows.raise(highest, to_first);
      leave_of_rows(shared + kFirstReferenceOffset, rows.reference);
      hand_over(kFirstReference);
      rows.weigh_keys();
      half.shrink(to_first);
      wgmma_pin(half.o);
      wgmma_pin(rows.weights);
      wgmma_fence();
      add_values(half, rows.weights, values_of(shared, 0, 0));
      wait_for(kSecondReference);
      take_of_rows(shared + kSecondReferenceOffset, highest);
      rows.raise(highest, to_both);
      rows.store(shared + kFirstPOffset, to_both);
      hand_over(kFirstP);
      wgmma_wait<0>();
      wgmma_pin(half.o);
      if (goes_on) {
        sync_group(0);  // all have left the slabs
        copies.load<0, 0, kFirstEarly>(keys_at(2 * pair + 2).k0);
      }
      half.shrink(to_both);
      wgmma_pin(half.o);
      wait_for(kSecondP);
      wgmma_fence();
      add_values_shared(half, shared + kSecondPOffset, values_of(shared, 1, 0));
      wgmma_wait<0>();
      wgmma_pin(half.o);
      if (goes_on) {
        sync_group(0);
        copies.load<1, kSecondEarly, kSlabs>(keys_at(2 * pair + 3).k0);
        look_up(pair + 2);
      }
    }
    sync_threads();  // what results take the place of is free, and the other's sum is there
    rows.store_statistics(part, shared + kFirstReferenceOffset);
    half.store(part, 0);
  } else {
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
      const bool goes_on = pair + 1 < pairs;
      multiply_keys<1>(rows.s, shared, pair & 1);
      const Unit keys = keys_at(2 * pair + 1);
      rows.finish_scores(keys.k0, !keys.full);
      float highest[2], first[2], less[2];
      rows.find_highest(highest);
      wait_for(kFirstReference);  // and all have left the slab that P takes the place of
      take_of_rows(shared + kFirstReferenceOffset, first);
#pragma unroll
      for (int i = 0; i < 2; ++i) highest[i] = math_max(highest[i], first[i]);
      rows.raise(highest, less);
      leave_of_rows(shared + kSecondReferenceOffset, rows.reference);
      hand_over(kSecondReference);
      rows.weigh_keys();
      rows.store(shared + kSecondPOffset, as_they_are);
      hand_over(kSecondP);
      half.shrink(less);
      wgmma_pin(half.o);
      wgmma_pin(rows.weights);
      wgmma_fence();
      add_values(half, rows.weights, values_of(shared, 1, 1));
      wait_for(kFirstP);
      wgmma_fence();
      add_values_shared(half, shared + kFirstPOffset, values_of(shared, 0, 1));
      wgmma_wait<1>();
      if (goes_on) {
        sync_group(1);
        copies.load<1, 0, kSecondEarly>(keys_at(2 * pair + 3).k0);
      }
      wgmma_wait<0>();
      wgmma_pin(half.o);
      if (goes_on) {
        sync_group(1);
        copies.load<0, kFirstEarly, kSlabs>(keys_at(2 * pair + 2).k0);
        look_up(pair + 2);
      }
    }
    rows.leave_sum(shared + kFirstReferenceOffset);
    sync_threads();
    half.store(part, 1);
  }
  sync_threads();
  deliver(params, own, part, *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset),
          share);
}

}  // namespace att
