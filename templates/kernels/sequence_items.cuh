// The kernel that deals out the work of packed sequences, whose lengths only the device knows: it
// lists the query tiles of all sequences, the longest first, and fills the rest of the list with
// items of no sequence. A counting sort by the number of key tiles that the mask leaves (of head 0,
// its closed-form bounds alone); within an eighth of one another the order does not matter.
#pragma once

#include "templates/cpu/launch.h"
#include "templates/sequence.h"
#include "templates/work_items.h"
#if ATT_DEVICE_CODE
#include "templates/ptx/shared_memory.cuh"
#include "templates/tile/prefix_sums.cuh"
#endif

namespace att {

// Key tiles by which items are told apart: each number to 16, then eight classes an octave. The
// heaviest class is number 0.
constexpr int kItemClasses = 256;

ATT_FN int item_class(int key_tiles) {
  if (key_tiles < 16) return kItemClasses - 1 - key_tiles;
  int octave = 4;
  while (key_tiles >> (octave + 1) != 0) ++octave;
  return kItemClasses - 1 - (8 * (octave - 2) + (key_tiles >> (octave - 3) & 7));
}

ATT_FN int item_class(const PackedParams& p, const Sequence& sequence, const SequenceItem& item) {
  if (sequence.kv_len == 0) return item_class(0);
  const int q0 = item.tile * kItemQueries;
  const Context c = context_of(p, sequence, item.sequence, 0, 0);
  const KvBounds bounds = kv_bounds(c, q0, min_i32(q0 + kItemQueries, sequence.q_len));
  if (bounds.begin >= bounds.end) return item_class(0);
  return item_class(tile_count(bounds.end, kItemKeys) - bounds.begin / kItemKeys);
}

// Query tiles of a sequence, at most `room`: offsets that overlap may claim more than the list has.
ATT_FN int item_tiles(const Sequence& sequence, int room) {
  return min_i32(tile_count(sequence.q_len, kItemQueries), room);
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
template <typename Visit>
ATT_FN int visit_items(const PackedParams& p, int capacity, ItemTables& tables,
                       const Visit& visit) {
  int done = 0;
#pragma unroll 1
  for (int first = 0; first < p.batch && done < capacity; first += kItemThreads) {
    const int own = first + thread_index();
    const int room = capacity - done;
    tables.ends[thread_index()] = own < p.batch ? item_tiles(sequence_of(p, own), room) : 0;
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
      visit(item, item_class(p, sequence_of(p, item.sequence), item));
    }
    done += count;
    sync_threads();
  }
  return done;
}

ATT_FN void list_items(const PackedParams& p, ItemTables& tables) {
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  const int thread = thread_index();
  if (thread < kItemClasses) tables.counts[thread] = 0;
  sync_threads();
  const int count = visit_items(p, capacity, tables, [&](const SequenceItem&, int which) {
    take_one(&tables.counts[which]);
  });
  sync_threads();
  const int own = thread < kItemClasses ? tables.counts[thread] : 0;
  sync_threads();
  add_up(tables.counts, kItemClasses, capacity);
  if (thread < kItemClasses) tables.counts[thread] -= own;
  sync_threads();
  visit_items(p, capacity, tables, [&](const SequenceItem& item, int which) {
    const int at = take_one(&tables.counts[which]);
    if (at < capacity) p.sequences.items[at] = item;
  });
#pragma unroll 1
  for (int i = count + thread; i < capacity; i += kItemThreads) p.sequences.items[i] = {-1, 0};
}

#else

template <typename Visit>
ATT_FN int visit_items(const PackedParams& p, int capacity, const Visit& visit) {
  int done = 0;
  for (int b = 0; b < p.batch && done < capacity; ++b) {
    const Sequence sequence = sequence_of(p, b);
    const int tiles = item_tiles(sequence, capacity - done);
    for (int tile = 0; tile < tiles; ++tile) {
      const SequenceItem item{b, tile};
      visit(item, item_class(p, sequence, item));
    }
    done += tiles;
  }
  return done;
}

ATT_FN void list_items(const PackedParams& p) {
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  int next[kItemClasses] = {};
  const int count =
      visit_items(p, capacity, [&](const SequenceItem&, int which) { ++next[which]; });
  int before = 0;
  for (int& at : next) {
    const int own = at;
    at = before;
    before += own;
  }
  visit_items(p, capacity, [&](const SequenceItem& item, int which) {
    const int at = next[which]++;
    if (at < capacity) p.sequences.items[at] = item;
  });
  for (int i = count; i < capacity; ++i) p.sequences.items[i] = {-1, 0};
}

#endif

}  // namespace att

#if ATT_DEVICE_CODE
ATT_KERNEL __launch_bounds__(att::kItemThreads)
    ATT_JOIN(ATT_KERNEL_NAME, _items)(ATT_GRID_CONSTANT att::ListKernelParams params) {
  __shared__ att::ItemTables tables;
  att::list_items(params, tables);
}
#else
extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items_work)(const att::LaunchParams*,
                                                       att::CpuWork* work) {
  *work = {nullptr, 1, 0};
}

extern "C" void ATT_JOIN(ATT_KERNEL_NAME, _items)(const att::LaunchParams* params, int, void*) {
  att::list_items(*params);
}
#endif
