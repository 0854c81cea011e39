// Fixed pieces of an item's keys, as CTAs of batch-invariant specs take them: where they end, and
// in which order keys and results are added up, follows from a key's number alone. A row's bits are
// then the same whatever rows, sequences and CTAs there are beside it: what is dead to it adds
// zeros, and a reference that does not rise multiplies by one.
#pragma once

#include "templates/items.h"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/fixed_order.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

ATT_FN PieceOfItem listed_fixed_piece(const PackedParams& p, int index) {
  PieceOfItem own = listed_piece(p, index);
  if (own.item.rows() <= 0) return own;
  const int h_kv = index % p.kv_heads;
  own.arrivals += h_kv * (kMostFixedResults / p.kv_heads - kMostPieces / p.kv_heads);
  own.result = own.arrivals + own.piece;
  own.all_results = kMostFixedResults;
  return own;
}

ATT_FN PieceOfItem fixed_piece_at(const PackedParams& p, int index) {
  if constexpr (spec::kIsPacked) return listed_fixed_piece(p, index);
  const int items = item_count(p);
  const int pieces = dealt_pieces(items, p.kv_len);
  const int item = index / pieces;
  return {item_at(p, item), index % pieces, pieces, index, items * pieces, item};
}

static_assert(plan::kWarps == kChains && plan::kStepKeys == kChainStepKeys &&
              kUnitKeys == kChainUnitKeys);

// Goes through the steps of the live units of a piece that are of the warp's chain, in order. A
// warp finds 32 units at a time for itself.
struct StepWalk {
  const ForwardParams& p;
  const Item& judged;
  int next, end;              // keys not looked at yet
  int key = 0, unit_end = 0;  // of the unit, those that are still to come
  int unit_is_full = 0;
  int base = 0;
  unsigned live = 0, full = 0;  // of the units from `base` on

  ATT_MEMBER StepWalk(const ForwardParams& params, const Item& of, const KvBounds& bounds,
                      int piece)
      : p(params), judged(of) {
    const PieceKeys keys = keys_of_piece(bounds, piece);
    next = keys.begin + warp_index() * kUnitKeys;
    end = keys.end;
  }

  // First key of the next one, plus one where all of its unit is live; negative: there is none.
  ATT_MEMBER int advance() {
    if (key >= unit_end) {
      while (live == 0) {
        if (next >= end) return -1;
        base = next;
        next += 32 * kChains * kUnitKeys;
        const int kv_len = judged.sequence.kv_len;
        const int k0 = base + lane_index() * (kChains * kUnitKeys);
        const int k1 = kv_len - k0 < kUnitKeys ? kv_len : k0 + kUnitKeys;
        TileClass found = TileClass::kSkip;
        if (k0 < end) found = class_of(p, judged, k0, k1);
        live = ballot(found != TileClass::kSkip);
        full = ballot(found == TileClass::kFull && k1 - k0 == kUnitKeys);
      }
      const int bit = highest_bit(live & (0u - live));
      live &= live - 1;
      key = base + kChains * kUnitKeys * bit;
      unit_end = min_i32(key + kUnitKeys, end);
      unit_is_full = static_cast<int>(full >> bit & 1);
    }
    const int step = key + unit_is_full;
    key += plan::kStepKeys;
    return step;
  }
};

// ---- Merging.

// Results up to now for four columns of a row.
struct Folded {
  float reference = -infinity(), sum = 0.0f;
  float o[4] = {};

  ATT_MEMBER FourFloats columns() const { return {{o[0], o[1], o[2], o[3]}}; }

  // The next one. The sum of a row that has met a live key is 1 and more, or NaN.
  ATT_MEMBER void fold(float its_reference, float its_sum, const FourFloats& its_o) {
    if (its_sum == 0.0f) return;
    const FoldFactors by = fold_statistics(reference, sum, its_reference, its_sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = folded(o[i], its_o.x[i], by);
  }
};

// Four columns of a row of what a piece's chains have come to.
template <int kRows, int kStride>
ATT_FN Folded fold_chains(const Parts<kRows, kStride>& chains, int row, int column) {
  Folded all;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    const float* const statistic = chains.statistic(chain, row);
    all.fold(statistic[0], statistic[1],
             *reinterpret_cast<const FourFloats*>(chains.output(chain, row) + column));
  }
  return all;
}

}  // namespace att
