// The live kv tiles of a cluster's query rows, found by the producer warp and told to the consumers
// through the stages: no list is stored.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// What a consumer must know of a tile before it comes: a stage says it of the tile after its own,
// so that nothing is read between the arrival of K and the product that takes it.
struct TileInfo {
  int tile;   // first key / kTileKv
  int flags;  // which pieces are live, and full, for which warpgroup; bit 0: it is there
};
constexpr int kNoTile = 0;
constexpr int kIsTile = 1;
// Of the bit of piece 0.
ATT_FN int live_shift(int warpgroup) { return 1 + 2 * warpgroup; }
ATT_FN int full_shift(int warpgroup) { return 9 + 2 * warpgroup; }

ATT_FN void store_tile_info(unsigned address, const TileInfo& info) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(info.tile), "r"(info.flags)
               : "memory");
}

// Lane 0 reads it for the warp, as it is lane 0 that gives the stage back.
ATT_FN TileInfo load_tile_info(unsigned address) {
  TileInfo info;
  asm volatile(
      "{\n.reg .pred first;\nsetp.eq.u32 first, %3, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\n@first ld.shared.v2.b32 {%0, %1}, [%2];\n}"
      : "=r"(info.tile), "=r"(info.flags)
      : "r"(address), "r"(thread_index() % 32)
      : "memory");
  return {shuffle_from(info.tile, 0), shuffle_from(info.flags, 0)};
}

// Whether keys are walked upwards: where the score itself falls with the key, as a relative bias
// may, so that the first tiles hold the largest scores and the reference taken from them lasts. The
// item's first query speaks for all.
ATT_FN bool walks_up(const Context& c, int q0) {
  if constexpr (!kScoreVariesByKey) return false;
  return score(c, 0.0f, q0, 0) > score(c, 0.0f, q0, c.kv_len - 1);
}

// From the last live tile down to the first, or upwards. Each lane classifies one of 32 tiles for
// the rows of every warpgroup of the cluster, piece by piece; a tile is live when one of these is.
// A full piece lies within kv_len. The whole warp calls next().
struct ClusterWalk {
  const Context& context;
  int q0, cta_rank;
  bool up;
  int first, last;  // tiles within the mask's bounds: [first, last)
  int base;         // tile of lane 0
  unsigned live = 0;
  int flags = 0;  // of this lane's tile

  ATT_MEMBER ClusterWalk(const Context& c, int q0, int cta_rank)
      : context(c), q0(q0), cta_rank(cta_rank) {
    const KvBounds bounds = kv_bounds(c, q0, min_i32(q0 + kClusterRows, c.q_len));
    up = walks_up(c, q0);
    first = bounds.begin / kTileKv;
    last = bounds.begin < bounds.end ? (bounds.end + kTileKv - 1) / kTileKv : first;
    base = up ? first - 32 : last;
  }

  // kNoTile when there is none left.
  ATT_MEMBER TileInfo next() {
    while (live == 0) {
      if (up ? base + 32 >= last : base <= first) return {0, kNoTile};
      base += up ? 32 : -32;
      classify(base + thread_index() % 32);
    }
    const int bit = highest_bit(up ? live & (0 - live) : live);
    live ^= 1u << bit;
    return {base + bit, shuffle_from(flags, bit)};
  }

 private:
  ATT_MEMBER void classify(int tile) {
    flags = kIsTile;
    bool any = false;
    if (tile >= first && tile < last) {
      for (int i = 0; i < kCluster * kWarpgroups * kPieces; ++i) {
        const int piece = i % kPieces;
        const int slice = i / kPieces;  // of the cluster's rows
        const int row = q0 + slice * kRows;
        const int k0 = tile * kTileKv + piece * kPieceKeys;
        if (row >= context.q_len || k0 >= context.kv_len) continue;
        const int k1 = min_i32(k0 + kPieceKeys, context.kv_len);
        const TileClass tile_class =
            classify_tile(context, row, min_i32(row + kRows, context.q_len), k0, k1);
        if (tile_class == TileClass::kSkip) continue;
        any = true;
        const int warpgroup = slice - cta_rank * kWarpgroups;
        if (warpgroup < 0 || warpgroup >= kWarpgroups) continue;
        flags |= 1 << (live_shift(warpgroup) + piece);
        if (tile_class == TileClass::kFull && k1 == k0 + kPieceKeys) {
          flags |= 1 << (full_shift(warpgroup) + piece);
        }
      }
    }
    live = ballot(any);
  }
};

}  // namespace sm90
}  // namespace att
