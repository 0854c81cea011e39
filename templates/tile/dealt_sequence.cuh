// What the kernels that deal out packed sequences' keys to CTAs know of each sequence.
#pragma once

#include "templates/items.h"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/prefix_sums.cuh"

namespace att {

ATT_FN int at_most(long long value, int most) {
  return static_cast<int>(value < most ? value : most);
}

// How a sequence is dealt out: so many items of a K/V head, of which `parts` are the heads of a
// tile. `units`: of its keys, as the mask's bounds leave them to head 0.
struct Dealt {
  int items = 0, units = 0;
  int parts = 0, heads_per_item = 0;
  Sequence sequence = {};
};
constexpr int kMostItems = 1 << 24;  // of a sequence that are counted: whatever its length is

// No items of one that there is not.
ATT_FN Dealt dealt(const PackedParams& p, int b) {
  Dealt own;
  if (b >= p.batch) return own;
  own.sequence = sequence_of(p, b);
  own.sequence.kv_len = opaque(own.sequence.kv_len);  // asked for beside q_len, not after it
  const Sequence& sequence = own.sequence;
  if (sequence.q_len == 0) return own;
  KvBounds bounds = {0, sequence.kv_len};
  if (spec::kHasMask && sequence.kv_len > 0) {
    bounds = kv_bounds(context_of(p, sequence, b, 0, 0), 0, sequence.q_len);
  }
  const PackedTiles<int> grid = packed_tiles(p.heads, p.kv_heads, sequence.q_len, plan::kTileQ);
  own.items = at_most(static_cast<long long>(grid.q_tiles) * grid.head_parts, kMostItems);
  own.units = tile_count(bounds.begin < bounds.end ? bounds.end - bounds.begin : 0, kUnitKeys);
  own.parts = grid.head_parts;
  own.heads_per_item = grid.heads_per_item;
  return own;
}

// Of pieces of which none has come yet.
template <int kCount>
ATT_FN void zero_arrivals(const PackedParams& p) {
  static_assert(kCount % kItemThreads == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kItemThreads) p.pieces.arrivals[i + thread_index()] = 0;
}

// a / b of numbers that are not negative: fewer instructions than of any.
ATT_FN int quotient(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) / static_cast<unsigned>(b));
}

// A sequence's entries in the list of pieces: its pieces, within them parts of heads, within them
// tiles.
struct ListedSequence {
  int first, count;  // entries
  int parts, heads_per_item;
  int pieces;  // of an item
  int result;  // where its results begin, of those that wait to be merged
  int q_len, kv_len, q_first, kv_first;
};
ATT_FN ListedSequence listed_sequence(const Dealt& of, int pieces, const ThreadSum& entries,
                                      int result) {
  return {entries.before,
          entries.up_to - entries.before,
          of.parts,
          of.heads_per_item,
          pieces,
          result,
          of.sequence.q_len,
          of.sequence.kv_len,
          of.sequence.q_first,
          of.sequence.kv_first};
}

// Lists sequences [first, first + count), which have their entries from `done` on; `room`: of
// results. The whole CTA calls it, a warp for a sequence.
ATT_FN void list_sequences(const PackedParams& p, const ListedSequence* sequences, int first,
                           int count, int done, int room) {
#pragma unroll 1
  for (int at = warp_index(); at < count; at += kItemThreads / 32) {
    const ListedSequence of = sequences[at];
#pragma unroll 1
    for (int i = lane_index(); i < of.count; i += 32) {
      const int rest = quotient(i, of.pieces);
      const int tile = quotient(rest, of.parts);
      PieceItem item = {first + at,
                        tile,
                        rest - tile * of.parts,
                        of.heads_per_item,
                        i - rest * of.pieces,
                        of.pieces,
                        of.result + rest * of.pieces,
                        of.q_len,
                        of.kv_len,
                        of.q_first,
                        of.kv_first};
      // Offsets that overlap may claim more than there is room for: then one CTA has all keys.
      if (item.pieces > 1 && item.result + item.pieces > room) {
        if (item.piece > 0) item.sequence = -1;
        item.piece = 0;
        item.pieces = 1;
      }
      p.pieces.items[done + of.first + i] = item;
    }
  }
}

// Entries [first, end) of the list are of no sequence.
ATT_FN void list_nothing(const PackedParams& p, int first, int end) {
#pragma unroll 1
  for (int i = first + thread_index(); i < end; i += kItemThreads) p.pieces.items[i] = {-1};
}

}  // namespace att
