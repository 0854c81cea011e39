// The query tiles that a tile of keys must visit, of all query heads that share the keys, found
// from the mask as the kernel goes: no list is stored.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"

namespace att {

// Upwards through the tiles of one head. 32 tiles are classified at once, one a lane. Every warp
// that walks the same keys sees the same tiles.
template <int kTileQ>
struct QueryWalk {
  int first, last;  // tiles within the mask's bounds: [first, last)
  int next_tile;    // without a mask: the next one; with one: behind the tiles classified last
  unsigned live = 0, full = 0;

  ATT_MEMBER QueryWalk(const Context& c, int k0, int k1) {
    QBounds bounds{0, c.q_len};
    if constexpr (spec::kHasMask) {
      // Of a packed sequence without queries no look-up is proven.
      if (!spec::kIsPacked || c.q_len > 0) bounds = q_bounds(c, k0, k1);
    }
    first = bounds.begin / kTileQ;
    last = bounds.begin < bounds.end ? (bounds.end + kTileQ - 1) / kTileQ : first;
    next_tile = first;
  }

  // The next tile as 2 * index + (1 when all its elements are live), or negative. The keys of a
  // full tile lie within kv_len; its queries may pass q_len.
  ATT_MEMBER int next(const Context& c, int k0, int k1, bool keys_inside) {
    if constexpr (!spec::kHasMask) {
      if (next_tile >= last) return -1;
      return 2 * next_tile++ + (keys_inside ? 1 : 0);
    }
    while (live == 0) {
      if (next_tile >= last) return -1;
      const int tile = next_tile + lane_index();
      TileClass tile_class = TileClass::kSkip;
      const int q0 = tile * kTileQ;
      if (tile < last) tile_class = classify_tile(c, q0, min_i32(q0 + kTileQ, c.q_len), k0, k1);
      live = ballot(tile_class != TileClass::kSkip);
      full = ballot(tile_class == TileClass::kFull && keys_inside);
      next_tile += 32;
    }
    const int bit = highest_bit(live & (0u - live));
    live ^= 1u << bit;
    return 2 * (next_tile - 32 + bit) + static_cast<int>(full >> bit & 1);
  }
};

struct GroupTile {
  int index;  // first query / kTileQ; negative: none is left
  int h;
  bool full;
};

template <int kTileQ>
struct GroupWalk {
  int k0, k1;
  bool keys_inside;  // the tile of keys does not pass kv_len
  int first_head, heads;
  int head = 0;  // of them, the current one
  QueryWalk<kTileQ> walk;

  // `c`: of the first head.
  ATT_MEMBER GroupWalk(const Context& c, int k0, int k1, int heads, int keys)
      : k0(k0),
        k1(k1),
        keys_inside(k0 + keys <= c.kv_len),
        first_head(c.h),
        heads(heads),
        walk(c, k0, k1) {}

  // `context(h)`: of query head h.
  template <typename F>
  ATT_MEMBER GroupTile next(const F& context) {
    while (true) {
      const int tile = walk.next(context(first_head + head), k0, k1, keys_inside);
      if (tile >= 0) return {tile / 2, first_head + head, tile % 2 != 0};
      if (head + 1 >= heads) return {-1, first_head, false};
      ++head;
      walk = QueryWalk<kTileQ>(context(first_head + head), k0, k1);
    }
  }
};

}  // namespace att
