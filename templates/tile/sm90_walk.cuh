// The live kv tiles of a cluster's query rows, found by the producer warp and told to the consumers
// through the stages: no list is stored.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// What a consumer must know of the tile in a stage.
struct TileInfo {
  int tile;   // first key / kTileKv
  int flags;  // bit 0: the walk's last; the others say which pieces are live, and full, for whom
};
constexpr int kLastTile = 1;
// Of the bit of piece 0.
ATT_FN int live_shift(int warpgroup) { return 1 + 2 * warpgroup; }
ATT_FN int full_shift(int warpgroup) { return 9 + 2 * warpgroup; }

ATT_FN void store_tile_info(unsigned address, const TileInfo& info) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(info.tile), "r"(info.flags)
               : "memory");
}

ATT_FN TileInfo load_tile_info(unsigned address) {
  TileInfo info;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(info.tile), "=r"(info.flags)
               : "r"(address)
               : "memory");
  return info;
}

// From the last live tile down to the first. Each lane classifies one of 32 tiles for the rows of
// every warpgroup of the cluster, piece by piece; a tile is live when one of these is. A full piece
// lies within kv_len. The whole warp calls next().
struct ClusterWalk {
  const Context& context;
  int q0, cta_rank;
  int first;  // lowest tile within the mask's bounds
  int base;   // tile of lane 0
  unsigned live = 0;
  int flags = 0;  // of this lane's tile

  ATT_MEMBER ClusterWalk(const Context& c, int q0, int cta_rank)
      : context(c), q0(q0), cta_rank(cta_rank) {
    const KvBounds bounds = kv_bounds(c, q0, min_i32(q0 + kClusterRows, c.q_len));
    first = bounds.begin / kTileKv;
    base = bounds.begin < bounds.end ? (bounds.end + kTileKv - 1) / kTileKv : first;
  }

  // False when there is none left.
  ATT_MEMBER bool next(TileInfo& info) {
    while (live == 0) {
      if (base <= first) return false;
      base -= 32;
      classify(base + thread_index() % 32);
    }
    const int bit = highest_bit(live);
    live ^= 1u << bit;
    info.tile = base + bit;
    info.flags = shuffle_from(flags, bit);
    return true;
  }

 private:
  ATT_MEMBER void classify(int tile) {
    flags = 0;
    bool any = false;
    if (tile >= first) {
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
