// The keys of an item of the sm90a family's backward kernels that bring Q and dO for each tile of
// keys, and the walk over the queries that see them.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_order.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/tile/walk_parts.cuh"

namespace att {
namespace sm90 {

struct KeyTile {
  int b, h_kv, k0;
  Sequence own = {};  // of packed sequences,
  int part = 0;       // and of the walk
};
// The one of that number, of tiles of so many keys. Not of packed sequences.
ATT_FN KeyTile key_tile_at(const BackwardParams& p, int index, int keys) {
  const auto [head, tile] =
      backward_tile(index, tile_count(p.kv_len, keys), p.batch * p.kv_heads, false);
  const int b = head / p.kv_heads;
  return {b, head - b * p.kv_heads, tile * keys};
}

// The live query tiles of all heads that share the keys, one after the other; `Walk`: over those of
// one head.
template <typename Walk>
struct GroupWalk {
  const BackwardParams& p;
  const KeyTile item;
  int h;
  int end;
  Walk walk;

  ATT_MEMBER GroupWalk(const BackwardParams& p, const KeyTile& item)
      : p(p), item(item), h(item.h_kv * (p.heads / p.kv_heads)), end(h + p.heads / p.kv_heads) {
    if constexpr (kCutsWalks) {
      const WalkPart part = own_part();
      end = h + part.end_head;
      h += part.first_head;
    }
    begin();
  }
  // False when there is none left. The whole warp calls it.
  ATT_MEMBER bool next(TileInfo& tile) {
    while (!walk.next(context(), tile)) {
      if (++h >= end) return false;
      begin();
    }
    tile.h = h;
    return true;
  }

 private:
  ATT_MEMBER void begin() {
    walk.begin(context(), item.k0);
    if constexpr (kCutsWalks) {
      walk.keep(own_part().cut(h - item.h_kv * (p.heads / p.kv_heads), walk.tiles));
    }
  }
  ATT_MEMBER WalkPart own_part() const {
    return spec::kIsPacked ? walk_part(p, item.own.q_len, item.part) : own_walk_part(p);
  }
  ATT_MEMBER Context context() const { return item_context(p, item.own, item.b, h, item.h_kv); }
};

}  // namespace sm90
}  // namespace att
