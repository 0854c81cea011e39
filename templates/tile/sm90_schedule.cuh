// Work items of the sm90a family: which query tile of which head a CTA (a cluster) takes next, and
// the ring through which the scheduler tells the consumers, and they tell it what must be done
// again.
#pragma once

#include "templates/ptx/arrive.cuh"
#include "templates/ptx/cluster.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/sm90_listed_pieces.cuh"
#include "templates/tile/sm90_sample.cuh"
#include "templates/tile/sm90_walk.cuh"
#include "templates/tile/sm90_ways.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

struct WorkItem {
  int b, h, q0;  // the first head and query row of the cluster
};

ATT_FN int q_tiles(const ForwardParams& p) { return tile_count(p.q_len, kItemQueries); }

// Items that a query tile has in all heads of a sequence.
ATT_FN int head_items(const ForwardParams& p) {
  return kHeadsAbreast ? head_sets(p.heads, p.kv_heads, plan::kItemHeads) : p.heads;
}
ATT_FN int first_head(const ForwardParams& p, int item) {
  return kHeadsAbreast ? first_head_of_set(item, p.heads, p.kv_heads, plan::kItemHeads) : item;
}

// Of all heads; packed, those of no sequence included.
ATT_FN int whole_items(const ForwardParams& p) {
  if constexpr (spec::kIsPacked)
    return sequence_item_count(p.q_len, p.batch, kItemQueries) * head_items(p);
  return q_tiles(p) * p.batch * head_items(p);
}

// Pieces of each of them; how many packed sequences' have follows from their lengths.
ATT_FN int key_pieces(const ForwardParams& p) {
  return kCutsKeys && !spec::kIsPacked
             ? key_piece_count(whole_items(p), kWarpgroups * kRows, plan::kKeyPieces)
             : 1;
}

// What CTAs are dealt: items, or pieces of them, an item's after one another.
ATT_FN int all_items(const ForwardParams& p) { return whole_items(p) * key_pieces(p); }

// How the query heads are shared out. A mask's items are uneven: under a causal one the last query
// tiles are the longest.
ATT_FN HeadGroups<int> groups_of(const ForwardParams& p) {
  const long long kv_bytes = (spec::kHeadDimQk + spec::kHeadDimV) * 2LL * p.kv_len;
  const int heads = head_items(p);
  return head_groups(p.batch * heads,
                     group_sizes(p.batch, heads, p.kv_heads, kv_bytes, plan::kGroupBytes,
                                 plan::kHeadsPerGroup, spec::kHasMask));
}

// Whether the item of the list that has number `index` among those of all heads is one of no
// sequence, as all behind it are.
ATT_FN bool is_no_item(const ForwardParams& p, int index) {
  if constexpr (!spec::kIsPacked) return false;
  return static_cast<const PackedParams&>(p).sequences.items[index / head_items(p)].sequence < 0;
}

ATT_FN WorkItem work_item(const ForwardParams& p, const HeadGroups<int>& groups, int index) {
  const int heads = head_items(p);
  if constexpr (spec::kIsPacked) {
    const int at = index / heads;
    const SequenceItem listed = static_cast<const PackedParams&>(p).sequences.items[at];
    return {listed.sequence, first_head(p, index - at * heads), listed.tile * kItemQueries};
  }
  const int tiles = q_tiles(p);
  const auto [head, at] = tile_by_group(index, tiles, groups, spec::kHasMask);
  const int tile = plan::kFirstTileFirst ? with_first_tile_first(at, tiles) : at;
  const int b = head / heads;
  return {b, first_head(p, head - b * heads), tile * kItemQueries};
}

// With kCutsKeys: what number `number` of all that CTAs are dealt is. The whole warp calls it.
struct DealtItem {
  WorkItem item;
  KeyPiece piece;
};
ATT_FN DealtItem dealt_item(const ForwardParams& p, const HeadGroups<int>& groups,
                            const ListedPieces& listed, int number) {
  if constexpr (spec::kIsPacked) {
    const ListedPiece of =
        listed_piece(static_cast<const PackedParams&>(p), listed, head_items(p), number);
    return {{of.item.sequence, first_head(p, of.head), of.item.tile * kItemQueries}, of.own};
  }
  const int pieces = key_pieces(p);
  const int index = number / pieces;
  return {work_item(p, groups, index), {number - index * pieces, pieces, index * pieces}};
}

// A slot of the ring, as it lies in shared memory. Then come a word in which the warpgroups (of all
// CTAs) set their bits when their result overflowed, and with a mask, for the loader, the walk.
struct ItemSlot {
  int index;  // of the work item; kNoMoreItems ends the ring
  int redo;   // bit w: warpgroup w does it again, by a safer way; kLearnedShift: what else it says
  int b, h, q0, h_kv;
  TileInfo first;  // with a mask
};
constexpr int kNoMoreItems = -1;
constexpr int kSecondRedo = 1 << 16;  // in `redo`: the one before it failed too

constexpr int kLearnedShift = 20;  // in `redo`, above which: see kHints

// What `redo` says of the item itself; 0: it is done for the first time.
ATT_FN int redo_of(int redo) { return kHints ? redo & ((1 << kLearnedShift) - 1) : redo; }

// How many items are handed out at most before the verdict of the first of them is waited for. The
// fewer, the fewer are done in vain. Where all are as long as the ring of stages twice, the
// consumers have begun the last but one when another is wanted, and there is nothing to wait for.
ATT_FN int items_ahead(const ForwardParams& p) {
  if constexpr (!kHasSecondWay || spec::kHasMask || spec::kIsPacked || kCutsKeys) return kItemSlots;
  return p.kv_len >= 2 * kStages * kTileKv ? 2 : kItemSlots;
}

ATT_FN unsigned redo_word(unsigned slot_address) { return slot_address + 4; }

ATT_FN unsigned overflow_word(unsigned slot_address) {
  return slot_address + static_cast<unsigned>(sizeof(ItemSlot));
}

ATT_FN unsigned walk_words(unsigned slot_address) { return overflow_word(slot_address) + 4; }

// With kHints, behind the first slot: bit w, an item of warpgroup w failed.
ATT_FN unsigned failed_word(const SharedMemory& shared) {
  static_assert(sizeof(ItemSlot) + 4 + 5 * 4 + 4 + 4 <= kItemSlotBytes);
  return walk_words(shared.item(0)) + 5 * 4;
}

// With kCutsKeys, behind each slot: which piece it is.
ATT_FN unsigned piece_word(unsigned slot_address) { return walk_words(slot_address) + 6 * 4; }
ATT_FN KeyPiece load_key_piece(unsigned slot_address) {
  return key_piece(load_word(piece_word(slot_address)));
}

// What keys a slot's item, or its piece, has within its mask's bounds.
ATT_FN KeySpan keys_of_item(unsigned slot_address, const Context& c) {
  if constexpr (!kCutsKeys) return {0, c.kv_len};
  TileSpan tiles;
  if constexpr (spec::kHasMask) {
    tiles = {load_word(walk_words(slot_address)), load_word(walk_words(slot_address) + 4)};
  } else {
    tiles = tiles_of_piece(0, tile_count(c.kv_len, kTileKv), load_key_piece(slot_address));
  }
  return {tiles.begin * kTileKv, min_i32(tiles.end * kTileKv, c.kv_len)};
}

ATT_FN void store_slot(unsigned address, const ItemSlot& slot) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(slot.index),
               "r"(slot.redo), "r"(slot.b), "r"(slot.h)
               : "memory");
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address + 16), "r"(slot.q0),
               "r"(slot.h_kv), "r"(slot.first.tile), "r"(slot.first.flags)
               : "memory");
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(overflow_word(address)), "r"(0) : "memory");
}

// The same in all lanes, and known to be so.
ATT_FN ItemSlot load_slot(unsigned address) {
  int word[8] = {};
  asm volatile(
      "{\n.reg .pred first;\nsetp.eq.u32 first, %9, 0;\n"
      "@first ld.shared.v4.b32 {%0, %1, %2, %3}, [%8];\n"
      "@first ld.shared.v4.b32 {%4, %5, %6, %7}, [%8 + 16];\n}"
      : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]), "+r"(word[4]), "+r"(word[5]),
        "+r"(word[6]), "+r"(word[7])
      : "r"(address), "r"(thread_index() % 32)
      : "memory");
#pragma unroll
  for (int i = 0; i < 8; ++i) word[i] = shuffle_from(word[i], 0);
  return {word[0], word[1], word[2], word[3], word[4], word[5], {word[6], word[7]}};
}

// What the CTA does next. The whole warp calls it.
struct ItemSource {
  int issued = 0;   // items handed to the consumers
  int checked = 0;  // of them, those whose verdict was read
  int next_index;   // of the next new item
  int count;
  bool drawn = true;    // next_index was not handed out yet
  ListedPieces listed;  // with kCutsKeys, of packed sequences

  ATT_MEMBER explicit ItemSource(const ForwardParams& p)
      : next_index(block_index() / kCluster), count(all_items(p)) {
    if constexpr (kCutsKeys && spec::kIsPacked) {
      const int heads = head_items(p);
      listed = choose_pieces(static_cast<const PackedParams&>(p), heads, block_count());
      if (finds_items(p)) {
        count = listed.count * heads;
      } else if (listed.length > 0) {
        count = max_i32(count - kMostListed * heads, 0) + listed.count * heads;
      }
    }
  }

  // An item to be done again comes before new ones. The slot issued % kItemSlots is free on return.
  ATT_MEMBER ItemSlot next(const ForwardParams& p, const SharedMemory& shared) {
    if (!drawn) draw(p);
    while (true) {
      const bool exhausted = next_index >= count || is_behind_list(p);
      if (checked + items_ahead(p) <= issued ||
          (exhausted && checked < issued && plan::kFrozenMax)) {
        const int slot = checked % kItemSlots;
        mbarrier_wait<(kCluster > 1)>(shared.item_empty(slot), checked / kItemSlots & 1);
        ++checked;
        if constexpr (plan::kFrozenMax) {
          const int overflowed = load_word(overflow_word(shared.item(slot)));
          const int tried = redo_of(load_word(redo_word(shared.item(slot))));
          if (overflowed != 0) {
            return {load_word(shared.item(slot)),
                    overflowed | (tried != 0 ? kSecondRedo : 0),
                    0,
                    0,
                    0,
                    0,
                    {}};
          }
        }
        continue;
      }
      if (exhausted) return {kNoMoreItems, 0, 0, 0, 0, 0, {}};
      drawn = false;
      return {next_index, 0, 0, 0, 0, 0, {}};
    }
  }

 private:
  // Whether next_index is behind all items of packed sequences' list.
  ATT_MEMBER bool is_behind_list(const ForwardParams& p) const {
    if constexpr (!kCutsKeys || !spec::kIsPacked) return is_no_item(p, next_index);
    const int heads = head_items(p);
    return !finds_items(p) && is_whole_listed(listed, heads, next_index) &&
           is_no_item(p, number_in_list(listed, heads, next_index));
  }

  // Not before the item is wanted: CTAs that held one in reserve ended up to 20 % apart at d 256.
  ATT_MEMBER void draw(const ForwardParams& p) {
    const int ctas = block_count() / kCluster;
    if constexpr (plan::kSchedule == plan::Schedule::single) {
      next_index = count;
    } else if constexpr (plan::kSchedule == plan::Schedule::persistent) {
      next_index += ctas;
    } else {
      wait_for_counters();
      int taken = 0;
      if (thread_index() % 32 == 0) taken = take_one_of(p.scheduler_counter);
      next_index = ctas + shuffle_from(taken, 0);
    }
    drawn = true;
  }
};

// The scheduler warp: finds the CTA's items, tells loader and consumers, and loads Q. Drawing an
// item and classifying its first tiles takes as long as a tile or two, during which the loader goes
// on.
ATT_FN void schedule(const ForwardParams& p, const TensorMap* q_map, const SharedMemory& shared,
                     int cta_rank) {
  const bool leader = thread_index() % 32 == 0;
  ItemSource source(p);
  HeadGroups<int> groups{};
  if constexpr (!spec::kIsPacked) groups = groups_of(p);
  for (int n = 0;; ++n) {
    if (n > 0) mbarrier_wait(shared.item_wanted(), (n & 1) ^ 1);
    ItemSlot item = source.next(p, shared);
    // Verdicts that are yet to be given are not waited for.
    if constexpr (kHints) {
      item.redo |= static_cast<int>(load_shared_4(failed_word(shared))) << kLearnedShift;
    }
    const unsigned slot = shared.item(n % kItemSlots);
    ++source.issued;
    if (item.index != kNoMoreItems) {
      WorkItem work;
      KeyPiece piece = {0, 1, 0};
      if constexpr (kCutsKeys) {
        const DealtItem dealt = dealt_item(p, groups, source.listed, item.index);
        work = dealt.item;
        piece = dealt.piece;
      } else {
        work = work_item(p, groups, item.index);
      }
      item.b = work.b;
      item.h = work.h;
      item.q0 = work.q0;
      // Heads of a K/V head are counted anew each time: this warp has no register to keep them in.
      item.h_kv = work.h / (opaque(p.heads) / p.kv_heads);
      if constexpr (kCutsKeys) {
        if (leader) store_shared_4(piece_word(slot), to_word(piece));
      }
      if constexpr (spec::kHasMask) {
        // The first item is told before its tiles are found.
        if (kSamples && n == 0) {
          if (leader) store_slot(slot, item);
          named_barrier_arrive(kSampleBarrier, 2 * 32);
        }
        const Context context = context_of(p, item.b, item.h, item.h_kv);
        ClusterWalk walk;
        walk.begin(context, item.q0);
        if constexpr (kCutsKeys) walk.cut(piece);
        item.first = walk.next(context, cta_rank);
        if (leader) walk.store(walk_words(slot));
      }
    }
    if (leader) {
      store_slot(slot, item);
      mbarrier_arrive(shared.item_full(n % kItemSlots));
    }
    if (item.index == kNoMoreItems) {
      wait_for_counters();  // once in any case
      return;
    }
    const Sequence sequence = sequence_of(p, item.b);
    const Context context = context_of(p, sequence, item.b, item.h, item.h_kv);
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      mbarrier_wait(shared.q_empty(warpgroup), (n & 1) ^ 1);
      if (!leader) continue;
      // The first time the warp that takes a sample says so.
      if (!kSamples || n > 0) mbarrier_arrive_expect(shared.q_full(warpgroup), kQBytes);
      for (int part = 0; part < kHeadsOfSlice; ++part) {
        const Slice slice = slice_of(context, item.q0, cta_rank * kWarpgroups + warpgroup, part);
        const int first = part * kHeadRows;
        for (int slab = 0; slab < kQkSlabs; ++slab) {
          tma_load(shared.q(warpgroup) + slab * kQSlabBytes + first * kRowBytes, q_map,
                   shared.q_full(warpgroup), slab * kSlabColumns,
                   sequence.q_first + slice.row + first, slice.h, sequence.slice,
                   CacheHint::kEvictFirst);
        }
      }
    }
  }
}

// A warp of its own: looks at scores of the CTA's first item, then lets its Q be complete. The
// scheduler says which item that is, or all of work_item() would be here again.
ATT_FN void sample_first_item(const ForwardParams& p, const SharedMemory& shared) {
  bool far = false;
  if (block_index() < all_items(p)) {
    named_barrier_sync(kSampleBarrier, 2 * 32);
    const ItemSlot item = load_slot(shared.item(0));
    const Sequence sequence = sequence_of(p, item.b);
    far = is_far_apart(context_of(p, sequence, item.b, item.h, item.h_kv), sequence, item.q0);
  }
  if (thread_index() % 32 != 0) return;
  set_shared_bits(failed_word(shared), far ? kSampledBit : 0);
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup)
    mbarrier_arrive_expect(shared.q_full(warpgroup), kQBytes);
}

}  // namespace sm90
}  // namespace att
