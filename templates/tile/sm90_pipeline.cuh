// The rings of K and V stages between the loader warp, or warps, and the consumer warpgroups.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/tile/sm90_page_boxes.cuh"
#include "templates/tile/sm90_schedule.cuh"
#include "templates/tile/sm90_walk.cuh"

namespace att {
namespace sm90 {

// Warps that read a stage, of all CTAs that get its data.
constexpr int kStageReaders = kCluster * kWarpgroups * 4;

// Warps that load K and V.
constexpr int kLoaders = plan::kCopiesRows ? 3 : 1;
// Arrivals at a stage's barrier: one that expects bytes of the tensor unit's, or one and those of
// the copies of a warp's threads.
constexpr int kKeyArrivals = plan::kCopiesKeyRows ? 1 + 32 : 1;
constexpr int kValueArrivals = plan::kCopiesRows ? 1 + 32 : 1;

// One thread of the CTA calls it, before all threads of the cluster synchronise.
ATT_FN void init_barriers(const SharedMemory& shared) {
  for (int stage = 0; stage < kStages; ++stage) {
    mbarrier_init(shared.k_full(stage), kKeyArrivals);
    mbarrier_init(shared.v_full(stage), kValueArrivals);
    mbarrier_init(shared.k_empty(stage), kStageReaders);
    mbarrier_init(shared.v_empty(stage), kStageReaders);
    if constexpr (spec::kIsPacked) mbarrier_init(shared.v_raw(stage), 1);
  }
  for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
    mbarrier_init(shared.q_full(warpgroup), 1);
    mbarrier_init(shared.q_empty(warpgroup), 4);
  }
  for (int slot = 0; slot < kItemSlots; ++slot) {
    mbarrier_init(shared.item_full(slot), 1);
    mbarrier_init(shared.item_empty(slot), kStageReaders + kLoaders);
  }
  mbarrier_init(shared.item_wanted(), 1);
  if constexpr (kHints) store_shared_4(failed_word(shared), 0);
  mbarrier_init_fence();
}

// Loads a K or V tile: each CTA of the cluster brings its share of the rows to all of them.
template <int kSlabs>
ATT_FN void load_tile(unsigned to, const TensorMap* map, unsigned barrier, int row, int head,
                      int batch, int cta_rank) {
  constexpr int kShareRows = kTileKv / kCluster;
  mbarrier_arrive_expect(barrier, kSlabs * kKvSlabBytes);
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    const unsigned slab_to = to + slab * kKvSlabBytes;
    if constexpr (kCluster == 1) {
      tma_load(slab_to, map, barrier, slab * kSlabColumns, row, head, batch, CacheHint::kEvictLast);
    } else {
      tma_load_multicast(slab_to + cta_rank * kShareRows * kRowBytes, map, barrier,
                         slab * kSlabColumns, row + cta_rank * kShareRows, head, batch,
                         CacheHint::kEvictLast, (1 << kCluster) - 1);
    }
  }
}

// Waits for a stage's K or V.
ATT_FN void wait_for_stage(unsigned barrier, unsigned parity) {
  mbarrier_wait(barrier, parity);
  if constexpr (plan::kCopiesRows)
    fence_shared_for_async();  // what was copied is for wgmma to read
}

// One arrival of the calling warp at a barrier that the readers of all CTAs of the cluster
// complete.
template <bool kRelease = false>
ATT_FN void warp_arrive(unsigned barrier) {
  const int lane = thread_index() % 32;
  if constexpr (kCluster == 1) {
    if (lane == 0) mbarrier_arrive(barrier);
  } else {
    if (lane < kCluster) mbarrier_arrive_remote<kRelease>(barrier, lane);
  }
}

// A tile that a consumer warpgroup has got.
struct Tile {
  RingPosition at;
  int key;    // its first
  int flags;  // with a mask, TileInfo's
};

// As uniform() of a position in a ring.
ATT_FN Sequence uniform(const Sequence& s) {
  return {shuffle_from(s.q_len, 0), shuffle_from(s.kv_len, 0), s.slice, shuffle_from(s.q_first, 0),
          shuffle_from(s.kv_first, 0)};
}
ATT_FN Tile uniform(const Tile& tile) {
  return {uniform(tile.at), shuffle_from(tile.key, 0), shuffle_from(tile.flags, 0)};
}

// The tiles of the work item, as a consumer warp sees them. All of it is uniform over the warp, and
// must look so to ptxas: it then lives in uniform registers, and branches on it need no convergence
// barriers (a quarter of the steady loop's instructions otherwise).
struct TileStream {
  // kDeadTile: another warpgroup's only; without a mask, one that the steady loop has no code for.
  enum Found { kTile, kDeadTile, kEnd };

  const SharedMemory& shared;
  int warpgroup;
  RingPosition position;
  TileInfo coming;  // the next tile; without a mask only how many follow it, negative at the end
  int last = -1;    // without a mask, when keys are walked upwards: the last tile
  int before = 0;   // with kCutsKeys, without a mask: tiles that lie before the piece

  ATT_MEMBER TileStream(const SharedMemory& shared, int warpgroup)
      : shared(shared), warpgroup(warpgroup) {}

  ATT_MEMBER void begin(const ItemSlot& item, const Context& c) {
    const int count = (c.kv_len + kTileKv - 1) / kTileKv;
    coming = spec::kHasMask ? item.first : TileInfo{count - 1, 0};
    if constexpr (!spec::kHasMask && kScoreVariesByKey) {
      last = walks_up(c, item.q0) ? count - 1 : -1;
    }
  }

  // Leaves a piece's tiles alone. (With a mask the scheduler has.)
  ATT_MEMBER void cut(const KeyPiece& own, const Context& c) {
    const TileSpan tiles = tiles_of_piece(0, tile_count(c.kv_len, kTileKv), own);
    coming.tile = tiles.end - tiles.begin - 1;
    last = last < 0 ? last : coming.tile;
    before = tiles.begin;
  }

  ATT_MEMBER bool at_end() const {
    return spec::kHasMask ? coming.flags == kNoTile : coming.tile < 0;
  }

  // Waits for the K of the next tile; its V may still be on the way. look() must follow before the
  // tile after it is asked for.
  ATT_MEMBER Found next(Tile& tile) {
    if (at_end()) return kEnd;
    take(tile);
    return !spec::kHasMask || is_live(tile) ? kTile : kDeadTile;
  }
  // The same where it is known that there is one, dead or not.
  ATT_MEMBER void take(Tile& tile) {
    int index = coming.tile;
    if constexpr (!spec::kHasMask && kScoreVariesByKey) index = last < 0 ? index : last - index;
    if constexpr (!spec::kHasMask && kCutsKeys) index += before;
    tile = {position, index * kTileKv, coming.flags};
    wait_for_stage(shared.k_full(position.stage), position.parity);
    if constexpr (plan::kPingPong) {
      named_barrier_sync(turn_barrier(warpgroup), 2 * kWarpgroupThreads);
    }
    position.advance();
  }

  // Tells ptxas that the state is the same in all lanes.
  ATT_MEMBER void make_uniform() {
    position = uniform(position);
    coming = {shuffle_from(coming.tile, 0), shuffle_from(coming.flags, 0)};
    if constexpr (!spec::kHasMask && kScoreVariesByKey) last = shuffle_from(last, 0);
    if constexpr (!spec::kHasMask && kCutsKeys) before = shuffle_from(before, 0);
  }

  // With kPingPong: the next warpgroup's turn, and, of the last one before the first tile, the
  // first's. All meet the same tiles, dead or not, so that each turn is taken and given.
  ATT_MEMBER void give_turn() const {
    if constexpr (plan::kPingPong) {
      const int next = warpgroup + 1 < kWarpgroups ? warpgroup + 1 : 0;
      named_barrier_arrive(turn_barrier(next), 2 * kWarpgroupThreads);
    }
  }

  // Learns what follows the tile, whose products were issued.
  ATT_MEMBER void look(const Tile& tile) {
    give_turn();
    if constexpr (spec::kHasMask) {
      coming = load_tile_info(shared.tile(tile.at.stage));
    } else {
      --coming.tile;
    }
    make_uniform();
  }

  // With a mask: whether the tile, or a piece of it, has live keys for this warpgroup.
  ATT_MEMBER bool is_live(const Tile& tile) const {
    return (tile.flags >> live_shift(warpgroup) & ((1 << kPieces) - 1)) != 0;
  }
  ATT_MEMBER bool is_live(const Tile& tile, int piece) const {
    return (tile.flags >> (live_shift(warpgroup) + piece) & 1) != 0;
  }
  // Whether the piece needs no mask.
  ATT_MEMBER bool is_full(const Tile& tile, int piece) const {
    return (tile.flags >> (full_shift(warpgroup) + piece) & 1) != 0;
  }

  // The next tile that is live for this warpgroup; no tile may be in use. False at the end.
  ATT_MEMBER bool next_live(Tile& tile) {
    Found found = next(tile);
    while (found == kDeadTile) {
      skip(tile);
      found = next(tile);
    }
    return found == kTile;
  }

  ATT_MEMBER void skip(const Tile& tile) {
    look(tile);
    wait_v(tile);
    release_k(tile);
    release_v(tile);
  }
  ATT_MEMBER void wait_v(const Tile& tile) const {
    wait_for_stage(shared.v_full(tile.at.stage), tile.at.parity);
  }
  ATT_MEMBER void release_k(const Tile& tile) const { warp_arrive(shared.k_empty(tile.at.stage)); }
  ATT_MEMBER void release_v(const Tile& tile) const { warp_arrive(shared.v_empty(tile.at.stage)); }
};

// Rows of V behind a packed sequence's last key are the next sequence's, and 0 times what they hold
// may be NaN. Tiles that have such rows come to a barrier of the loader's, which zeroes these rows
// before the consumers see the tile, when the K after it is on its way.
struct ForeignRows {
  unsigned parities = 0;  // of the stages' barriers, a bit each
  int stage = -1;         // of the tile that waits; negative: none
  int first = 0;          // its first such row

  ATT_MEMBER void wait_for(int at_stage, int first_row) {
    stage = at_stage;
    first = first_row;
  }
  ATT_MEMBER void clear(const SharedMemory& shared) {
    if (stage < 0) return;
    mbarrier_wait(shared.v_raw(stage), parities >> stage & 1);
    parities ^= 1u << stage;
    const unsigned zeros[4] = {};
    constexpr int kUnits = kRowBytes / 16;  // of a row of a slab, wherever the swizzle puts them
    const int lane = thread_index() % 32;
#pragma unroll 1
    for (int slab = 0; slab < kVSlabs; ++slab) {
#pragma unroll 1
      for (int row = first + lane / kUnits; row < kTileKv; row += 32 / kUnits) {
        store_shared_16(
            shared.v(stage) + slab * kKvSlabBytes + row * kRowBytes + lane % kUnits * 16, zeros);
      }
    }
    fence_shared_for_async();
    sync_warp();
    if (lane == 0) mbarrier_arrive(shared.v_full(stage));
    stage = -1;
  }
};

// Of a loader: the first tile of a slot's item. `walk` goes on to the others.
ATT_FN TileInfo begin_walk(ClusterWalk& walk, const SharedMemory& shared, int slot,
                           const ItemSlot& item, const Context& context, int cta_rank) {
  if constexpr (spec::kHasMask) {
    walk.load(walk_words(shared.item(slot)), context, item.q0);
    return item.first;
  } else {
    walk.begin(context, item.q0);
    if constexpr (kCutsKeys) walk.cut(load_key_piece(shared.item(slot)));
    return walk.next(context, cta_rank);
  }
}

// The loader warp: feeds the rings with the K and V of the scheduler's items.
ATT_FN void load(const ForwardParams& p, const TensorMap* k_map, const TensorMap* v_map,
                 const SharedMemory& shared, int cta_rank) {
  const bool leader = thread_index() % 32 == 0;
  RingPosition position;
  ForeignRows foreign;
  for (int n = 0;; ++n) {
    const int slot = n % kItemSlots;
    mbarrier_wait(shared.item_full(slot), n / kItemSlots & 1);
    const ItemSlot item = load_slot(shared.item(slot));
    if (item.index == kNoMoreItems) return;
    const Sequence sequence = sequence_of(p, item.b);
    const Context context = context_of(p, sequence, item.b, item.h, item.h_kv);
    ClusterWalk walk;
    TileInfo info = begin_walk(walk, shared, slot, item, context, cta_rank);
    if (leader) mbarrier_arrive(shared.item_empty(slot));
    bool has_more = info.flags != kNoTile;
    // A tile ahead of the copies.
    const auto box_of = [&](const TileInfo& tile) {
      return look_up_box(page_table_of(p), item.b, context.kv_len, tile.tile * kTileKv);
    };
    PagedKey next_box = {};
    if constexpr (spec::kIsPaged) {
      if (has_more) next_box = box_of(info);
    }
    do {
      const TileInfo following = has_more ? walk.next(context, cta_rank) : info;
      // Two or three tiles before the consumers will: an item that is found sooner may wait behind
      // a long one while other CTAs have nothing to do.
      if (following.flags == kNoTile && leader) mbarrier_arrive(shared.item_wanted());
      if (!has_more) break;
      const int row = sequence.kv_first + info.tile * kTileKv;
      const PagedKey box = next_box;
      if constexpr (spec::kIsPaged) {
        if (following.flags != kNoTile) next_box = box_of(following);
      }
      mbarrier_wait(shared.k_empty(position.stage), position.parity ^ 1);
      if (leader) {
        if constexpr (spec::kHasMask) store_tile_info(shared.tile(position.stage), following);
        if constexpr (!spec::kIsPaged) {
          load_tile<kQkSlabs>(shared.k(position.stage), k_map, shared.k_full(position.stage), row,
                              item.h_kv, sequence.slice, cta_rank);
        }
      }
      if constexpr (spec::kIsPaged) {
        load_page_boxes<kQkSlabs>(shared.k(position.stage), k_map, shared.k_full(position.stage),
                                  page_table_of(p), box, item.h_kv);
      }
      if constexpr (spec::kIsPacked) foreign.clear(shared);
      mbarrier_wait(shared.v_empty(position.stage), position.parity ^ 1);
      const int own_rows = context.kv_len - info.tile * kTileKv;
      const bool has_foreign = spec::kIsPacked && own_rows < kTileKv;
      if constexpr (spec::kIsPaged) {
        load_page_boxes<kVSlabs>(
            shared.v(position.stage), v_map,
            has_foreign ? shared.v_raw(position.stage) : shared.v_full(position.stage),
            page_table_of(p), box, item.h_kv);
      } else if (leader) {
        load_tile<kVSlabs>(
            shared.v(position.stage), v_map,
            has_foreign ? shared.v_raw(position.stage) : shared.v_full(position.stage), row,
            item.h_kv, sequence.slice, cta_rank);
      }
      if (has_foreign) foreign.wait_for(position.stage, own_rows);
      position.advance();
      info = following;
      has_more = info.flags != kNoTile;
    } while (has_more);
    if constexpr (spec::kIsPacked) foreign.clear(shared);
  }
}

}  // namespace sm90
}  // namespace att
