// The loops of the two warpgroups of a CTA that takes pairs of tiles of 64 keys.
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
//   its half of O, to r1                       its half of O, to r1, += P1 V1
//     += P1 V1                        <- P1 <-   += P0 V0
//
// References are not the rows' highest scores, but near them: kSlack. The second warpgroup's are
// the first one's or higher, and what the first one takes over.
//
// While one pair is multiplied the next one takes its place slab by slab (sm90_mla_slabs.cuh). An
// odd number of tiles is followed by one without keys.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/cp_async.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/key_tiles.cuh"
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

// The keys of a piece, tile by tile.
struct PieceKeys {
  Units units;
  const SmallTable& table;
  int kv_len, unit_shift, steps, pairs;

  ATT_MEMBER PieceKeys(const Units& of, const SmallTable& listed, int keys)
      : units(of), table(listed), kv_len(keys) {
    unit_shift = highest_bit(units.keys / kKeys);
    steps = units.count << unit_shift;
    pairs = (steps + 1) / 2;
  }
  ATT_MEMBER Unit at(int step) const {
    if (step >= steps) return Unit{kv_len, false};
    const Unit unit = unit_at(units, table, step >> unit_shift, kv_len);
    return Unit{unit.k0 + (step & ((1 << unit_shift) - 1)) * kKeys, unit.full};
  }
  // Whether the tile has the last keys of the sequence, and others behind them.
  ATT_MEMBER bool ends_in(const Unit& tile) const {
    return kv_len > tile.k0 && kv_len - tile.k0 < kKeys;
  }
};

template <bool kByMap>
ATT_FN void look_up_pair(SlabCopies<kByMap>& copies, const PieceKeys& keys, int pair) {
  copies.look_up(keys.at(2 * pair).k0, keys.at(2 * pair + 1).k0);
}

constexpr int kFirstEarly = early_slabs(0), kSecondEarly = early_slabs(1);

// The whole CTA calls it: starts the copies of the first pair, and looks up the next one.
template <bool kByMap>
ATT_FN void begin_pairs(SlabCopies<kByMap>& copies, const PieceKeys& keys) {
  look_up_pair(copies, keys, 0);
  if (keys.pairs > 0) {
    if (warp_index() / 4 == 0) {
      copies.template load<0, 0, kFirstEarly>(keys.at(0).k0);
      copies.template load<1, kSecondEarly, kSlabs>(keys.at(1).k0);
    } else {
      copies.template load<0, kFirstEarly, kSlabs>(keys.at(0).k0);
      copies.template load<1, 0, kSecondEarly>(keys.at(1).k0);
    }
  }
  look_up_pair(copies, keys, 1);
}

// The first warpgroup calls it. `parity`: of the pairs that the slabs' barriers have seen.
template <bool kByMap>
ATT_FN void attend_as_first(SlabCopies<kByMap>& copies, const PieceKeys& keys, RowsOfP& rows,
                            HalfOfO& half, unsigned shared, int parity) {
#pragma unroll 1
  for (int pair = 0; pair < keys.pairs; ++pair) {
    const bool goes_on = pair + 1 < keys.pairs;
    multiply_keys<kByMap, 0>(rows.s, shared, (pair + parity) & 1);
    const Unit unit = keys.at(2 * pair);
    if (kByMap && keys.ends_in(unit)) clear_values(shared, 0, keys.kv_len - unit.k0);
    rows.finish_scores(unit.k0, !unit.full);
    float highest[2], to_first[2], to_both[2];  // references; by how much sums shrink
    rows.find_highest(highest);
    rows.keep_close(highest, rows.reference);
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
    fence_shared_for_async();
    hand_over(kFirstP);
    wgmma_wait<0>();
    wgmma_pin(half.o);
    if (goes_on) {
      sync_group(0);  // all have left the slabs
      copies.template load<0, 0, kFirstEarly>(keys.at(2 * pair + 2).k0);
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
      copies.template load<1, kSecondEarly, kSlabs>(keys.at(2 * pair + 3).k0);
      look_up_pair(copies, keys, pair + 2);
    }
  }
}

// The second one.
template <bool kByMap>
ATT_FN void attend_as_second(SlabCopies<kByMap>& copies, const PieceKeys& keys, RowsOfP& rows,
                             HalfOfO& half, unsigned shared, int parity) {
  const float as_they_are[2] = {1.0f, 1.0f};
#pragma unroll 1
  for (int pair = 0; pair < keys.pairs; ++pair) {
    const bool goes_on = pair + 1 < keys.pairs;
    multiply_keys<kByMap, 1>(rows.s, shared, (pair + parity) & 1);
    const Unit unit = keys.at(2 * pair + 1);
    if (kByMap && keys.ends_in(unit)) clear_values(shared, 1, keys.kv_len - unit.k0);
    rows.finish_scores(unit.k0, !unit.full);
    float highest[2], first[2], less[2];
    rows.find_highest(highest);
    wait_for(kFirstReference);  // and all have left the slab that P takes the place of
    take_of_rows(shared + kFirstReferenceOffset, first);
    rows.keep_close(highest, first);
    rows.raise(highest, less);
    leave_of_rows(shared + kSecondReferenceOffset, rows.reference);
    hand_over(kSecondReference);
    rows.weigh_keys();
    rows.store(shared + kSecondPOffset, as_they_are);
    half.shrink(less);
    wgmma_pin(half.o);
    wgmma_pin(rows.weights);
    wgmma_fence();
    add_values(half, rows.weights, values_of(shared, 1, 1));
    fence_shared_for_async();  // of P1, while the product runs
    wait_for(kFirstP);
    wgmma_fence();
    add_values_shared(half, shared + kFirstPOffset, values_of(shared, 0, 1));
    // Only now: the first warpgroup's last product is not to come before these two, behind which
    // the next pair's copies begin.
    hand_over(kSecondP);
    wgmma_wait<1>();
    if (goes_on) {
      sync_group(1);
      copies.template load<1, 0, kSecondEarly>(keys.at(2 * pair + 3).k0);
    }
    wgmma_wait<0>();
    wgmma_pin(half.o);
    if (goes_on) {
      sync_group(1);
      copies.template load<0, kFirstEarly, kSlabs>(keys.at(2 * pair + 2).k0);
      look_up_pair(copies, keys, pair + 2);
    }
  }
}

// Each warpgroup as one of them.
template <bool kByMap>
ATT_FN void attend(SlabCopies<kByMap> copies, const PieceKeys& keys, RowsOfP& rows, HalfOfO& half,
                   unsigned shared, int parity) {
  if (warp_index() / 4 == 0) {
    attend_as_first(copies, keys, rows, half, shared, parity);
  } else {
    attend_as_second(copies, keys, rows, half, shared, parity);
  }
}

}  // namespace att
