// The tiles of a work item in the order in which batch-invariant specs add up keys
// (templates/tile/fixed_order.cuh): a tile is a unit. The loader warp finds them and tells the
// consumers through the stages.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/fixed_order.cuh"
#include "templates/tile/sm90_layout.cuh"
#include "templates/tile/sm90_walk.cuh"

namespace att {
namespace sm90 {

static_assert(kTileKv == kChainUnitKeys && kPieces == 1 && kCluster == 1 && !kHeadsAbreast);
static_assert(kFixedPieceKeys % (kChains * kChainUnitKeys) == 0);

// What a stage's word of flags says of its tile, and of what follows it. Above them, from
// kFullShift on, a bit for each warpgroup for which all of it is live.
constexpr int kChainEnds = 1, kPieceEnds = 2, kItemEnds = 4;

struct FixedTile {
  int tile;   // first key / kTileKv
  int chain;  // of all pieces' chains; negative: there is no tile
  unsigned full;
};

// The whole warp calls it. A tile that is dead for one warpgroup and not for another is both's.
struct FixedWalk {
  static constexpr int kParts = 4;  // lanes that share a tile: one for each warpgroup
  static constexpr int kAtOnce = 32 / kParts;
  static constexpr int kChainKeys = kChains * kTileKv;  // from a chain's tile to its next
  static_assert(kWarpgroups <= kParts);

  int q0;
  KvBounds bounds;
  int piece, last_piece, chain;
  int next, end;  // keys of the chain not looked at yet
  int base = 0;   // of lane 0
  unsigned live = 0, full = 0;
  bool is_first = true;

  ATT_MEMBER FixedWalk(const Context& c, int at_q0) : q0(at_q0) {
    bounds = {0, c.kv_len};
    if (spec::kHasMask && (!spec::kIsPacked || c.kv_len > 0))
      bounds = kv_bounds(c, q0, min_i32(q0 + kItemQueries, c.q_len));
    const PieceRange range = pieces_of(bounds);
    piece = range.first;
    last_piece = range.last;
    chain = 0;
    begin_chain();
  }

  // Of items without a live tile a dead one comes, so that consumers always have one.
  ATT_MEMBER FixedTile next_tile(const Context& c) {
    while (live == 0) {
      if (piece > last_piece) {
        const bool is_none = is_first;
        is_first = false;
        return {0, is_none ? 0 : -1, 0};
      }
      if (next < end) {
        classify(c);
      } else {
        chain = chain == kChains - 1 ? 0 : chain + 1;
        piece += chain == 0 ? 1 : 0;
        begin_chain();
      }
    }
    is_first = false;
    const int bit = highest_bit(live & (0 - live));
    const int at = bit / kParts;
    const unsigned full_for = full >> (at * kParts) & ((1u << kWarpgroups) - 1);
    live &= ~(((1u << kParts) - 1) << at * kParts);
    return {base / kTileKv + at * kChains, piece * kChains + chain, full_for};
  }

 private:
  ATT_MEMBER void begin_chain() {
    const PieceKeys keys = keys_of_piece(bounds, piece);
    next = keys.begin + chain * kTileKv;
    end = keys.end;
  }

  ATT_MEMBER void classify(const Context& c) {
    base = next;
    next += kAtOnce * kChainKeys;
    const int lane = thread_index() % 32;
    const int part = lane % kParts;
    const int row = q0 + part * kRows;
    const int k0 = base + lane / kParts * kChainKeys;
    const int k1 = min_i32(k0 + kTileKv, c.kv_len);
    TileClass found = TileClass::kSkip;
    if (k0 < end && part < kWarpgroups && row < c.q_len) {
      found = TileClass::kFull;
      if constexpr (spec::kHasMask)
        found = classify_tile(c, row, min_i32(row + kRows, c.q_len), k0, k1);
    }
    live = ballot(found != TileClass::kSkip);
    full = ballot(found == TileClass::kFull && k1 == k0 + kTileKv);
  }
};

}  // namespace sm90
}  // namespace att
