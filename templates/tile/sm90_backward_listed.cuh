// Work items of packed sequences in the sm90a family's backward kernel: tiles of keys of a list, of
// all key heads. CTAs take one after the other off a counter, as heads of short sequences have many
// of few tiles each: K, V and the first queries of the next one come while the gradients of the
// last one leave, and no CTA is started for it.
#pragma once

#include "templates/ptx/arrive.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/listed_order.cuh"
#include "templates/tile/sm90_backward_items.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/walk_parts.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

// A tile of keys of a key head.
struct ListedItem {
  int b, h_kv, k0;  // negative b: none
  int sums;         // number of the sequence's first tile of dQ's sums, of head 0
  Sequence own;
  int part = 0;  // of its walk
};

ATT_FN int listed_tiles(const BackwardParams& p) {
  return sequence_item_count(p.kv_len, p.batch, kTileKv);
}
ATT_FN HeadTile<int> listed_tile(const BackwardParams& p, int number) {
  return tile_of_list(number, opaque(listed_tiles(p)), opaque(p.kv_heads));
}

// One thread's, for its CTA: whatever becomes of the lengths meanwhile, all of it agree on which
// rows are the sequence's. False where the list says none, or one that is not in its sequence: the
// lengths may have changed since it was listed. So where walks are cut and its own is not into as
// many parts as another sequence's may be: those of a key tile follow one another.
ATT_FN bool store_listed_item(const BackwardParams& p, int number, unsigned to) {
  const SequenceItem* const list = static_cast<const PagedParams&>(p).key_items;
  int part = 0;
  if constexpr (kCutsWalks) {
    const int parts = opaque(cut_walks(p).parts), whole = number / parts;
    part = number - whole * parts;
    number = whole;
  }
  const auto [h_kv, index] = listed_tile(p, number);
  // Both words by one load.
  const long long words = *reinterpret_cast<const long long*>(list + index);
  const SequenceItem listed{static_cast<int>(words), static_cast<int>(words >> 32)};
  if (listed.sequence < 0) return false;
  const Sequence own = sequence_of(p, listed.sequence);
  const int k0 = listed.tile * kTileKv;
  if (k0 >= own.kv_len) return false;
  if constexpr (kCutsWalks) {
    if (part >= cut_walks(p, own.q_len).parts) return false;
    store_shared_4(to + 32, part);
  }
  store_shared_4(to, listed.sequence);
  store_shared_4(to + 4, h_kv);
  store_shared_4(to + 8, k0);
  store_shared_4(to + 12, packed_sums(p, own, listed.sequence));
  store_shared_4(to + 16, own.q_len);
  store_shared_4(to + 20, own.kv_len);
  store_shared_4(to + 24, own.q_first);
  store_shared_4(to + 28, own.kv_first);
  return true;
}
ATT_FN ListedItem load_listed_item(unsigned from) {
  const auto word = [&](int i) { return load_uniform_word(from + 4 * i); };
  if constexpr (!spec::kIsPacked) {
    const WorkItem item = load_item(from);
    return {item.b, item.h_kv, item.k0, item.sums, {0, 0, item.b, 0, 0}, item.part};
  }
  const int part = kCutsWalks ? word(8) : 0;
  return {word(0), word(1), word(2), word(3), {word(4), word(5), 0, word(6), word(7)}, part};
}

// A warp's, which finds the items and tells the others. n: items of the CTA before.
ATT_FN ListedItem take_listed_item(const BackwardParams& p, const SharedMemory& shared,
                                   unsigned n) {
  if constexpr (!spec::kIsPacked) {
    const WorkItem item = take_item(p, shared, n);
    return {item.b, item.h_kv, item.k0, item.sums, {0, 0, item.b, 0, 0}, item.part};
  }
  mbarrier_wait(shared.item_empty(n), (n >> 1 & 1) ^ 1);
  if (thread_index() % 32 == 0) {
    int count = listed_tiles(p) * p.kv_heads;
    if constexpr (kCutsWalks) count *= cut_walks(p).parts;
    int number;
    do {
      number = take_one_of(p.scheduler_counter);
    } while (number < count && !store_listed_item(p, number, shared.item_slot(n)));
    if (number >= count) store_shared_4(shared.item_slot(n), ~0u);
    mbarrier_arrive(shared.item_full(n));
  }
  sync_warp();
  return load_listed_item(shared.item_slot(n));
}

// The items for another warp: body(item, n), n items of the CTA before; n & 1 is the parity of
// barriers which each item completes once.
template <typename Body>
ATT_FN void for_each_listed_item(const SharedMemory& shared, const Body& body) {
  for (unsigned n = 0;; ++n) {
    mbarrier_wait(shared.item_full(n), n >> 1 & 1);
    const ListedItem item = load_listed_item(shared.item_slot(n));
    if (item.b < 0) return;
    body(item, n);
    sync_warp();
    if (thread_index() % 32 == 0) mbarrier_arrive(shared.item_empty(n));
  }
}

}  // namespace sm90
}  // namespace att
