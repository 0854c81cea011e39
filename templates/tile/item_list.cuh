// How a list of the tiles of all packed sequences is made, the longest first, filled up with items
// of no sequence. A counting sort by the number of tiles that the mask leaves to walk (of head 0,
// its closed-form bounds alone); within an eighth of one another the order does not matter.
#pragma once

#include "templates/sequence.h"
#include "templates/work_items.h"
#if ATT_DEVICE_CODE
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/prefix_sums.cuh"
#endif

namespace att {

// Walked tiles by which items are told apart: each number to 16, then eight classes an octave. The
// heaviest class is number 0.
constexpr int kItemClasses = 256;

ATT_FN int item_class(int tiles) {
  if (tiles < 16) return kItemClasses - 1 - tiles;
  int octave = 4;
  while (tiles >> (octave + 1) != 0) ++octave;
  return kItemClasses - 1 - (8 * (octave - 2) + (tiles >> (octave - 3) & 7));
}

// What a list is of; a list of key tiles says the same (templates/tile/key_items.cuh).
struct QueryItems {
  static constexpr int kRows = kItemQueries;
  static ATT_MEMBER int all_rows(const PackedParams& p) { return p.q_len; }
  static ATT_MEMBER int rows(const Sequence& sequence) { return sequence.q_len; }
  static ATT_MEMBER SequenceItem* list(const PackedParams& p) { return p.sequences.items; }
  // What an item walks: of the sequence, of rows [begin, end), in tiles.
  static constexpr int kWalkedTile = kItemKeys;
  static ATT_MEMBER int walked_rows(const Sequence& sequence) { return sequence.kv_len; }
  static ATT_MEMBER KvBounds walked_rows(const Context& c, int begin, int end) {
    return kv_bounds(c, begin, end);
  }
};

template <typename Items>
ATT_FN int item_class(const PackedParams& p, const Sequence& sequence, const SequenceItem& item) {
  if (Items::walked_rows(sequence) == 0) return item_class(0);
  const int first = item.tile * Items::kRows;
  const Context c = context_of(p, sequence, item.sequence, 0, 0);
  const auto bounds =
      Items::walked_rows(c, first, min_i32(first + Items::kRows, Items::rows(sequence)));
  if (bounds.begin >= bounds.end) return item_class(0);
  return item_class(tile_count(bounds.end, Items::kWalkedTile) - bounds.begin / Items::kWalkedTile);
}

// Tiles of a sequence, at most `room`: offsets that overlap may claim more than the list has.
template <typename Items>
ATT_FN int item_tiles(const Sequence& sequence, int room) {
  return min_i32(tile_count(Items::rows(sequence), Items::kRows), room);
}

template <typename Items>
ATT_FN int item_capacity(const PackedParams& p) {
  return sequence_item_count(Items::all_rows(p), p.batch, Items::kRows);
}

#if ATT_DEVICE_CODE

struct ItemTables {
  int ends[kItemThreads];    // of a chunk of sequences: tiles of those up to each
  int counts[kItemClasses];  // of the items, then where the next one of the class goes
};

ATT_FN int take_one(int* counter) {
  int value;
  asm volatile("atom.shared.add.u32 %0, [%1], 1;"
               : "=r"(value)
               : "r"(shared_address(counter))
               : "memory");
  return value;
}

// Calls visit(item, its class) of every item, each from one thread; returns how many there are.
template <typename Items, typename Visit>
ATT_FN int visit_items(const PackedParams& p, int capacity, ItemTables& tables,
                       const Visit& visit) {
  int done = 0;
#pragma unroll 1
  for (int first = 0; first < p.batch && done < capacity; first += kItemThreads) {
    const int own = first + thread_index();
    const int room = capacity - done;
    tables.ends[thread_index()] = own < p.batch ? item_tiles<Items>(sequence_of(p, own), room) : 0;
    sync_threads();
    add_up(tables.ends, kItemThreads, room);
    const int count = tables.ends[kItemThreads - 1];
#pragma unroll 1
    for (int i = thread_index(); i < count; i += kItemThreads) {
      int at = 0;  // the sequence: how many end before the item
#pragma unroll 1
      for (int step = kItemThreads / 2; step > 0; step /= 2) {
        if (tables.ends[at + step - 1] <= i) at += step;
      }
      const SequenceItem item{first + at, i - (at > 0 ? tables.ends[at - 1] : 0)};
      visit(item, item_class<Items>(p, sequence_of(p, item.sequence), item));
    }
    done += count;
    sync_threads();
  }
  return done;
}

template <typename Items>
ATT_FN void list_items(const PackedParams& p, ItemTables& tables) {
  const int capacity = item_capacity<Items>(p);
  const int thread = thread_index();
  if (thread < kItemClasses) tables.counts[thread] = 0;
  sync_threads();
  // Of a thread's last item: of its only one where there are no more than threads, so that lengths
  // and sums need not be gone through again.
  SequenceItem last{-1, 0};
  int last_class = 0, last_place = 0;
  const int count =
      visit_items<Items>(p, capacity, tables, [&](const SequenceItem& item, int which) {
        last = item;
        last_class = which;
        last_place = take_one(&tables.counts[which]);
      });
  sync_threads();
  const int own = thread < kItemClasses ? tables.counts[thread] : 0;
  sync_threads();
  add_up(tables.counts, kItemClasses, capacity);
  if (thread < kItemClasses) tables.counts[thread] -= own;
  sync_threads();
  if (p.batch <= kItemThreads && count <= kItemThreads) {
    const int at = tables.counts[last_class] + last_place;
    if (last.sequence >= 0 && at < capacity) Items::list(p)[at] = last;
  } else {
    visit_items<Items>(p, capacity, tables, [&](const SequenceItem& item, int which) {
      const int at = take_one(&tables.counts[which]);
      if (at < capacity) Items::list(p)[at] = item;
    });
  }
#pragma unroll 1
  for (int i = count + thread; i < capacity; i += kItemThreads) Items::list(p)[i] = {-1, 0};
}

#else

template <typename Items, typename Visit>
ATT_FN int visit_items(const PackedParams& p, int capacity, const Visit& visit) {
  int done = 0;
  for (int b = 0; b < p.batch && done < capacity; ++b) {
    const Sequence sequence = sequence_of(p, b);
    const int tiles = item_tiles<Items>(sequence, capacity - done);
    for (int tile = 0; tile < tiles; ++tile) {
      const SequenceItem item{b, tile};
      visit(item, item_class<Items>(p, sequence, item));
    }
    done += tiles;
  }
  return done;
}

template <typename Items>
ATT_FN void list_items(const PackedParams& p) {
  const int capacity = item_capacity<Items>(p);
  int next[kItemClasses] = {};
  const int count =
      visit_items<Items>(p, capacity, [&](const SequenceItem&, int which) { ++next[which]; });
  int before = 0;
  for (int& at : next) {
    const int own = at;
    at = before;
    before += own;
  }
  visit_items<Items>(p, capacity, [&](const SequenceItem& item, int which) {
    const int at = next[which]++;
    if (at < capacity) Items::list(p)[at] = item;
  });
  for (int i = count; i < capacity; ++i) Items::list(p)[i] = {-1, 0};
}

#endif

}  // namespace att
