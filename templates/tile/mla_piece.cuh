// What a CTA of the mla family's mma.sync kernel makes of a piece of an item's keys.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/key_tiles.cuh"
#include "templates/tile/mla_cta.cuh"
#include "templates/tile/piece_results.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// The whole CTA calls it. The item has rows; `shares`: its units that are the piece's; `table` and
// `share` are in shared memory.
ATT_FN void attend_piece(const ListKernelParams& params, const PieceOfItem& own,
                         const UnitShare& shares, unsigned char* shared_memory, SmallTable& table,
                         int& share) {
  const unsigned shared = shared_address(shared_memory);
  const Item& item = own.item;
  const Sequence& sequence = item.sequence;

  constexpr int kAhead = plan::kStages - 1;  // tiles on their way
  load_q<kDimQk>(params, item, shared + kAhead * kStageBytes);
  cp_async_commit();
  const Units units = units_of_piece(params, item, shares, table);
  const int unit_shift = highest_bit(units.keys / kKeys);
  const int steps = units.count << unit_shift;
  const auto keys_at = [&](int step) {
    const Unit unit = unit_at(units, table, step >> unit_shift, sequence.kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * kKeys, unit.full};
  };

  using Tiles = KeyTiles<kKeys, kDimQk, kThreads, WholeRows<kDimQk>>;
  const auto look_up = [&](Tiles& tiles, int step) {
    if constexpr (spec::kIsPaged) {
      if (step >= steps) return;
      tiles.look_up({page_table_of(params), item.b, item.h_kv, sequence.kv_len}, keys_at(step).k0);
    }
  };
  const auto load = [&](const Tiles& tiles, int step, int stage) {
    if (step < steps) {
      const unsigned to = shared + stage * kStageBytes;
      if constexpr (spec::kIsPaged) {
        tiles.load_pages(to, params.k, params.k_stride,
                         {page_table_of(params), item.b, item.h_kv, sequence.kv_len});
      } else {
        const int k0 = keys_at(step).k0;
        Tiles::load(to,
                    static_cast<const char*>(params.k) +
                        2 * key_offset(sequence, params.k_stride, item.h_kv, k0),
                    params.k_stride.seq * 2, sequence.kv_len - k0);
      }
    }
    cp_async_commit();
  };

  Tiles next;
  look_up(next, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    load(next, i, i);
    look_up(next, i + 1);
  }
  cp_async_wait<kAhead>();
  sync_threads();
  MlaWarp warp(params, item);
  warp.keep_queries(shared + kAhead * kStageBytes);
  cp_async_wait<kAhead - 1>();
  sync_threads();  // the first tile has come for all warps, and all have left Q's stage

  const unsigned weights = shared + kPOffset;
  const unsigned maxima = shared + kMaximaOffset;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const unsigned tile = shared + stage * kStageBytes;
    const Unit keys = keys_at(step);
    float s[kKeyTiles][4];
    warp.multiply(s, tile, maxima, keys.k0, !keys.full);
    sync_threads();  // all maxima are there, and all warps have left the tile before
    load(next, step + kAhead, stage == 0 ? kAhead : stage - 1);
    look_up(next, step + plan::kStages);
    warp.weigh_keys(s, maxima, weights);
    cp_async_wait<kAhead - 1>();
    sync_threads();  // P is there, and so is the next tile
    warp.add_values(tile, weights);
    stage = stage == kAhead ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  float* const sums = reinterpret_cast<float*>(shared_memory + kMaximaOffset);
  warp.store_sums(sums);
  sync_threads();  // sums are there, and the ring is free

  float* const outputs = reinterpret_cast<float*>(shared_memory);
  const Parts<kRows, kPartStride> part = {outputs, outputs + kRows * kPartStride, 1};
  warp.store(part, sums);
  sync_threads();
  if constexpr (plan::kTakesStretches)
    wait_for_launches_before();  // arrivals are counted from zero
  deliver(params, own, part, *reinterpret_cast<ItemWeights*>(shared_memory + kWeightsOffset),
          share);
}

}  // namespace att
