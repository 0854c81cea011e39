// Work items whose rows may be of several heads: which rows an item has, and what a tile of keys is
// to them.
#pragma once

#include "templates/sequence.h"
#include "templates/work_items.h"

namespace att {

// Query rows [q0, q1) of heads [h0, h1), which share one K/V head; more than one head only when the
// queries of a single one do not fill a tile (decoding). Row r of the item is query q0 + r % (q1 -
// q0) of head h0 + r / (q1 - q0).
struct Item {
  int b, h_kv, h0, h1, q0, q1;
  Sequence sequence;
  ATT_MEMBER int queries() const { return q1 - q0; }
  ATT_MEMBER int rows() const { return (h1 - h0) * (q1 - q0); }
};

ATT_FN PackedTiles<int> item_grid(const ForwardParams& p) {
  return packed_tiles(p.heads, p.kv_heads, p.q_len, plan::kTileQ);
}

// Part `part` of the heads of a K/V head, of query tile q_tile.
ATT_FN Item item_of(const ForwardParams& p, const Sequence& sequence, int heads_per_item, int b,
                    int h_kv, int part, int q_tile) {
  Item item;
  item.sequence = sequence;
  item.b = b;
  item.h_kv = h_kv;
  const int group = p.heads / p.kv_heads;
  const int last = (part + 1) * heads_per_item;
  item.h0 = item.h_kv * group + part * heads_per_item;
  item.h1 = item.h_kv * group + (last < group ? last : group);
  item.q0 = q_tile * plan::kTileQ;
  const int q_len = sequence.q_len;
  item.q1 = q_len - item.q0 < plan::kTileQ ? q_len : item.q0 + plan::kTileQ;
  return item;
}

// Of packed sequences an item of the list has as many as there are query heads; where these share
// items, the last ones have nothing to do.
ATT_FN Item packed_item_at(const ForwardParams& p, int index) {
  const SequenceItem listed = static_cast<const PackedParams&>(p).sequences.items[index / p.heads];
  if (listed.sequence < 0) return {};
  const Sequence sequence = sequence_of(p, listed.sequence);
  // Another thread may have changed the lengths since they were listed.
  if (listed.tile >= tile_count(sequence.q_len, plan::kTileQ)) return {};
  const PackedTiles<int> grid = packed_tiles(p.heads, p.kv_heads, sequence.q_len, plan::kTileQ);
  const int rest = index % p.heads;
  const int h_kv = rest / grid.head_parts;
  if (h_kv >= p.kv_heads) return {};
  return item_of(p, sequence, grid.heads_per_item, listed.sequence, h_kv, rest % grid.head_parts,
                 listed.tile);
}

// Of a launch whose sequences are not packed.
ATT_FN int item_count(const ForwardParams& p) {
  return item_grid(p).per_kv_head() * p.kv_heads * p.batch;
}

// No rows: there is nothing to do.
ATT_FN Item item_at(const ForwardParams& p, int index) {
  if constexpr (spec::kIsPacked) return packed_item_at(p, index);
  const PackedTiles<int> grid = item_grid(p);
  const int q_tile = index % grid.q_tiles;
  index /= grid.q_tiles;
  const int part = index % grid.head_parts;
  index /= grid.head_parts;
  const int b = index / p.kv_heads;
  return item_of(p, sequence_of(p, b), grid.heads_per_item, b, index % p.kv_heads, part, q_tile);
}

ATT_FN Context context_of(const ForwardParams& p, const Item& item, int h) {
  return context_of(p, item.sequence, item.b, h, item.h_kv);
}

// The keys that some row of the item may see.
ATT_FN KvBounds bounds_of(const ForwardParams& p, const Item& item) {
  const int kv_len = item.sequence.kv_len;
  if (!spec::kHasMask || (spec::kIsPacked && kv_len == 0)) return {0, kv_len};
  KvBounds all = {kv_len, 0};
  for (int h = item.h0; h < item.h1; ++h) {
    const KvBounds one = kv_bounds(context_of(p, item, h), item.q0, item.q1);
    if (one.begin >= one.end) continue;
    all.begin = one.begin < all.begin ? one.begin : all.begin;
    all.end = one.end > all.end ? one.end : all.end;
  }
  return all;
}

// The class that holds for every head of the item.
ATT_FN TileClass class_of(const ForwardParams& p, const Item& item, int k0, int k1) {
  if (!spec::kHasMask) return TileClass::kFull;
  const TileClass first = classify_tile(context_of(p, item, item.h0), item.q0, item.q1, k0, k1);
  for (int h = item.h0 + 1; h < item.h1; ++h) {
    if (classify_tile(context_of(p, item, h), item.q0, item.q1, k0, k1) != first) {
      return TileClass::kPartial;
    }
  }
  return first;
}

}  // namespace att
