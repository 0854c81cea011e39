// Work items of packed sequences in the sm90a family's ordered kernels: a CTA has a tile of a list.
// One thread finds it and tells the others, so that all agree on which rows are the sequence's,
// whatever becomes of the lengths meanwhile.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/listed_order.cuh"
#include "templates/tile/sm90_cta.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

// A tile of a head.
struct ListedTile {
  int b;      // negative: none
  int head;   // of K/V heads or of query heads, as the list is of keys or of queries
  int first;  // row of the sequence
  Sequence own;
  int part = 0;  // of its walk
};
// In shared memory.
constexpr int kListedTileBytes = 32;

ATT_FN void store_listed_tile(unsigned to, const ListedTile& tile) {
  store_shared_4(to, tile.b);
  store_shared_4(to + 4, tile.head);
  store_shared_4(to + 8, tile.first);
  store_shared_4(to + 12, tile.own.q_len);
  store_shared_4(to + 16, tile.own.kv_len);
  store_shared_4(to + 20, tile.own.q_first);
  store_shared_4(to + 24, tile.own.kv_first);
  if constexpr (kCutsWalks) store_shared_4(to + 28, tile.part);
}
ATT_FN ListedTile load_listed_tile(unsigned from) {
  const auto word = [&](int i) { return load_uniform_word(from + 4 * i); };
  const int part = kCutsWalks ? word(7) : 0;
  return {word(0), word(1), word(2), {word(3), word(4), 0, word(5), word(6)}, part};
}

// Number `number` of a list's tiles of `rows` rows in `heads` heads. None where the list says so,
// or where the tile is not in its sequence: the lengths may have changed since it was listed.
// `length` says of which rows of a sequence they are.
template <typename Length>
ATT_FN ListedTile find_listed_tile(const BackwardParams& p, const SequenceItem* list, int number,
                                   int tiles, int heads, int rows, const Length& length) {
  const auto [head, index] = tile_of_list(number, tiles, heads);
  const SequenceItem listed = list[index];
  if (listed.sequence < 0) return {-1, 0, 0, {}};
  const Sequence own = sequence_of(p, listed.sequence);
  const int first = listed.tile * rows;
  if (first >= length(own)) return {-1, 0, 0, {}};
  return {listed.sequence, head, first, own};
}

// Of `rows` keys, where parts of a tile's walk follow one another.
ATT_FN ListedTile find_listed_keys(const BackwardParams& p, int number, int rows) {
  int part = 0;
  if constexpr (kCutsWalks) {
    const int parts = cut_walks(p).parts, whole = number / parts;
    part = number - whole * parts;
    number = whole;
  }
  ListedTile tile = find_listed_tile(p, static_cast<const PagedParams&>(p).key_items, number,
                                     sequence_item_count(p.kv_len, p.batch, rows), p.kv_heads, rows,
                                     [](const Sequence& own) { return own.kv_len; });
  tile.part = part;
  // Another sequence may be cut into more.
  if (kCutsWalks && tile.b >= 0 && part >= cut_walks(p, tile.own.q_len).parts) tile.b = -1;
  return tile;
}
ATT_FN ListedTile find_listed_queries(const BackwardParams& p, int number, int rows) {
  return find_listed_tile(p, static_cast<const PackedParams&>(p).sequences.items, number,
                          sequence_item_count(p.q_len, p.batch, rows), p.heads, rows,
                          [](const Sequence& own) { return own.q_len; });
}

}  // namespace sm90
}  // namespace att
