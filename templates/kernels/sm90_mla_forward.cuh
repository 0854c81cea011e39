// Attention forward for queries of many heads whose V is the first columns of K: the mla family's
// kernel for Hopper, wgmma.
//
// 64 rows are as many as wgmma multiplies at once, and O of 64 rows is as much as the registers of
// two warpgroups hold: each has half of its columns, as FlashMLA deals them (DeepSeek, 2025). The
// first warpgroup multiplies Q K^T, makes P, and hands it over through shared memory; both multiply
// P V, whose V lies in the tile of keys. The second one brings the tiles: while one is multiplied
// the next one is on its way. The product with the next tile's keys runs under the other's P V.
//
// Copies are cp.async, so that keys may lie in pages of any size; what they wrote is fenced for
// wgmma by those who copied it.
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
  bool& is_last = *reinterpret_cast<bool*>(shared_memory + kFlagOffset);

  if constexpr (spec::kIsPacked) wait_for_launches_before();
  const PieceOfItem own = piece_at(params, block_index());
  const Item& item = own.item;
  if (item.rows() <= 0) return;
  const Sequence& sequence = item.sequence;
  const int group = warp_index() / 4;

  load_rows_of_q(params, item, shared);
  const Units units = units_of<plan::kWarps>(params, item, own.piece, own.pieces, table);
  const int unit_shift = highest_bit(units.keys / kKeys);
  const int steps = units.count << unit_shift;
  const auto keys_at = [&](int step) {
    const Unit unit = unit_at(units, table, step >> unit_shift, sequence.kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * kKeys, unit.full};
  };

  using Tiles = KeyTiles<kKeys, kDimQk, kGroupThreads, SlabRows<kKeys>>;
  const auto tile_of = [&](int step) { return shared + kKOffset + (step & 1) * kTileBytes; };
  const auto look_up = [&](Tiles& tiles, int step) {
    if constexpr (spec::kIsPaged) {
      if (step >= steps) return;
      tiles.look_up({page_table_of(params), item.b, item.h_kv, sequence.kv_len}, keys_at(step).k0);
    }
  };
  const auto load = [&](const Tiles& tiles, int step) {
    if (step < steps) {
      if constexpr (spec::kIsPaged) {
        tiles.load_pages(tile_of(step), params.k, params.k_stride,
                         {page_table_of(params), item.b, item.h_kv, sequence.kv_len});
      } else {
        const int k0 = keys_at(step).k0;
        Tiles::load(tile_of(step),
                    static_cast<const char*>(params.k) +
                        2 * key_offset(sequence, params.k_stride, item.h_kv, k0),
                    params.k_stride.seq * 2, sequence.kv_len - k0);
      }
    }
    cp_async_commit();
  };

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  const Parts<kRows, kPartStride> part = {outputs, outputs + kRows * kPartStride, 1};
  HalfOfO half;
  half.clear();

  if (group == 0) {
    cp_async_commit();
    cp_async_wait<0>();
    fence_shared_for_async();
    sync_threads();  // Q and the first tile are there
    RowsOfP rows(params, item);
    const unsigned q = wgmma_descriptor(shared, kSlabBytes);
    const auto issue_scores = [&](int step) {
      wgmma_fence();
      plan::multiply_qk<2, kSlabBytes / 16, 2, kSlabBytes / 16>(
          rows.s, q, wgmma_descriptor(tile_of(step), kSlabBytes));
      wgmma_commit();
    };
    if (steps > 0) {
      issue_scores(0);
      wgmma_wait<0>();
      wgmma_pin(rows.s);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const Unit keys = keys_at(step);
      rows.weigh_keys(keys.k0, !keys.full);
      if (step > 0) wait_for(kPIsRead);
      rows.store(shared);
      hand_over(kPIsThere);
      half.shrink(rows.less);
      wgmma_pin(half.o);
      wgmma_pin(rows.weights);
      wgmma_fence();
      plan::multiply_pv<128, 4 * 128>(half.o, rows.weights, values_of(tile_of(step), 0));
      wgmma_commit();
      if (step + 1 < steps) {
        wait_for(kTileIsThere);
        issue_scores(step + 1);
        wgmma_wait<1>();
        hand_over(kTileIsRead);
        wgmma_wait<0>();
        wgmma_pin(rows.s);
      } else {
        wgmma_wait<0>();
        hand_over(kTileIsRead);
      }
      wgmma_pin(half.o);
    }
    sync_threads();  // what results take the place of is free
    rows.store_statistics(part);
    half.store(part, 0);
  } else {
    Tiles first, next;
    look_up(first, 0);
    look_up(next, 1);
    load(first, 0);
    load(next, 1);
    look_up(next, 2);
    cp_async_wait<1>();
    fence_shared_for_async();
    sync_threads();
    const unsigned p = wgmma_descriptor(shared + kPOffset, kSlabBytes);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for(kPIsThere);
      float less[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        less[i] = __builtin_bit_cast(
            float, load_shared_4(shared + kShrinkOffset + 4 * (lane_row() + 8 * i)));
      }
      half.shrink(less);
      wgmma_pin(half.o);
      wgmma_fence();
      plan::multiply_pv_shared<128, 4 * 128, 2, kSlabBytes / 16>(half.o, p,
                                                                 values_of(tile_of(step), 1));
      wgmma_commit();
      cp_async_wait<0>();
      fence_shared_for_async();
      if (step + 1 < steps) hand_over(kTileIsThere);
      wgmma_wait<0>();
      wgmma_pin(half.o);
      wait_for(kTileIsRead);
      if (step + 1 < steps) hand_over(kPIsRead);
      load(next, step + 2);
      look_up(next, step + 3);
    }
    cp_async_wait<0>();
    sync_threads();
    half.store(part, 1);
  }
  sync_threads();
  deliver(params, own, part, *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset),
          is_last);
}

}  // namespace att
