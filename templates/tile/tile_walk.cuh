// The kv tiles that a q tile must visit, found from the mask as the kernel goes: no list is stored.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"

namespace att {

// Goes from the last live tile down to the first, so that a causal mask's diagonal comes first.
// 32 tiles are classified at once, one a lane, and two ballots keep which are live and which are
// full. Every warp that walks the same rows sees the same tiles.
template <int kTileKv>
struct TileWalk {
  static constexpr int kEnd = -1;

  int first;      // lowest tile that kv_bounds leaves
  int next_tile;  // without a mask: the next one; with one: first of the tiles classified last
  unsigned live = 0, full = 0;

  ATT_MEMBER TileWalk(const Context& c, int q0, int q1) {
    KvBounds bounds = {0, 0};  // of a packed sequence without keys, which no look-up is proven for
    if (!spec::kIsPacked || c.kv_len > 0) bounds = kv_bounds(c, q0, q1);
    first = bounds.begin / kTileKv;
    next_tile = bounds.begin < bounds.end ? (bounds.end + kTileKv - 1) / kTileKv : first;
    if constexpr (!spec::kHasMask) --next_tile;
  }

  // The next tile as 2 * index + (1 when full), or kEnd. A full tile lies within kv_len and all of
  // its elements are live.
  ATT_MEMBER int next(const Context& c, int q0, int q1) {
    if constexpr (!spec::kHasMask) {
      if (next_tile < first) return kEnd;
      const int tile = next_tile--;
      return 2 * tile + ((tile + 1) * kTileKv <= c.kv_len ? 1 : 0);
    }
    while (live == 0) {
      if (next_tile <= first) return kEnd;
      next_tile -= 32;
      const int tile = next_tile + lane_index();
      TileClass tile_class = TileClass::kSkip;
      const int k0 = tile * kTileKv;
      if (tile >= first) {
        tile_class = classify_tile(c, q0, q1, k0, min_i32(k0 + kTileKv, c.kv_len));
      }
      live = ballot(tile_class != TileClass::kSkip);
      full = ballot(tile_class == TileClass::kFull && k0 + kTileKv <= c.kv_len);
    }
    const int bit = highest_bit(live);
    live ^= 1u << bit;
    return 2 * (next_tile + bit) + static_cast<int>(full >> bit & 1);
  }
};

}  // namespace att
