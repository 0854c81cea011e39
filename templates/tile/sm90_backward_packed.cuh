// Packed sequences in the sm90a family's backward kernel. TMA knows no sequence: the last tile of
// one brings rows of the next, which may be anything, and what is stored so would overwrite them.
#pragma once

#include "templates/ptx/fence.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_parts.cuh"
#include "templates/tile/sm90_backward_walk.cuh"

namespace att {
namespace sm90 {

// A tile of keys of a key head.
struct ListedItem {
  int b, h_kv, k0;
  Sequence own;
};

// ---- The item, which one thread looks up for its CTA: whatever becomes of the lengths meanwhile,
// all of it agree on which rows are the sequence's.

// Heads are taken in groups of about kListedTilesOfGroup tiles, of which a group's longest come
// first: so that dQ's sums of the heads under way stay in L2, which all heads' would not. 12
// documents of 8192 tokens, 16 heads, d 128, causal, on an H200: 302 us, in groups of 512 tiles
// 311, of 1024 341, of all 349.
constexpr int kListedTilesOfGroup = 256;
ATT_FN HeadTile<int> listed_tile(const BackwardParams& p) {
  const int tiles = sequence_item_count(p.kv_len, p.batch, kTileKv);
  const int groups = max_i32(1, tiles * p.kv_heads / kListedTilesOfGroup);
  const int size = tile_count(p.kv_heads, groups);
  return tile_by_group(block_index(), tiles, head_groups(p.kv_heads, GroupSizes<int>{size, size}),
                       false);
}

// Only if the item lies in its sequence: the lengths may have changed since it was listed.
ATT_FN void store_listed_item(const BackwardParams& p, unsigned to) {
  const SequenceItem* const list = static_cast<const PagedParams&>(p).key_items;
  const auto [h_kv, index] = listed_tile(p);
  const SequenceItem listed = list[index];
  Sequence own = {};
  if (listed.sequence >= 0) own = sequence_of(p, listed.sequence);
  const int k0 = listed.tile * kTileKv;
  const bool is_one = listed.sequence >= 0 && k0 < own.kv_len;
  store_shared_4(to, is_one ? listed.sequence : -1);
  store_shared_4(to + 4, h_kv);
  store_shared_4(to + 8, k0);
  store_shared_4(to + 12, own.q_len);
  store_shared_4(to + 16, own.kv_len);
  store_shared_4(to + 20, own.q_first);
  store_shared_4(to + 24, own.kv_first);
}
ATT_FN ListedItem load_listed_item(unsigned from) {
  const auto word = [&](int i) { return load_uniform_word(from + 4 * i); };
  return {word(0), word(1), word(2), {word(3), word(4), 0, word(5), word(6)}};
}

// ---- Rows of other sequences, zeroed before the consumers see them: 0 times NaN is NaN.

ATT_FN bool has_foreign_keys(const ListedItem& item) { return item.k0 + kTileKv > item.own.kv_len; }

// Rows [first, kRows) of a matrix, by a warp.
template <int kSlabs, int kRows>
ATT_FN void clear_rows(unsigned matrix, int first) {
  const unsigned zeros[4] = {};
  constexpr int kUnits = kRowBytes / 16;  // of a row of a slab, wherever the swizzle puts them
  const int lane = thread_index() % 32;
#pragma unroll 1
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll 1
    for (int row = first + lane / kUnits; row < kRows; row += 32 / kUnits) {
      store_shared_16(matrix + (slab * kRows + row) * kRowBytes + lane % kUnits * 16, zeros);
    }
  }
}

// A warp's beside the loader, which goes on to the queries.
ATT_FN void clear_foreign_keys(const SharedMemory& shared) {
  const ListedItem item = load_listed_item(shared.item());
  if (!has_foreign_keys(item)) return;
  mbarrier_wait(shared.kv_raw(), 0);
  const int own_rows = item.own.kv_len - item.k0;
  clear_rows<kQkSlabs, kTileKv>(shared.k(), own_rows);
  clear_rows<kVSlabs, kTileKv>(shared.v(), own_rows);
  fence_shared_for_async();
  sync_warp();
  if (thread_index() % 32 == 0) mbarrier_arrive(shared.kv_full());
}

// The loader's, of a stage whose Q and dO have come to q_raw.
ATT_FN void clear_foreign_queries(int own_rows, int stage, unsigned parity,
                                  const SharedMemory& shared) {
  mbarrier_wait(shared.q_raw(), parity);
  clear_rows<kQkSlabs, kTileQ>(shared.q(stage), own_rows);
  clear_rows<kVSlabs, kTileQ>(shared.d_o(stage), own_rows);
  fence_shared_for_async();
  sync_warp();
  if (thread_index() % 32 != 0) return;
  mbarrier_arrive(shared.q_full(stage));
  mbarrier_arrive(shared.do_full(stage));
}

// ---- The loader warp: load() of templates/tile/sm90_backward_keys.cuh, for a listed item.

ATT_FN void load_listed(const BackwardParams& p, const TensorMap* q_map, const TensorMap* k_map,
                        const TensorMap* v_map, const TensorMap* do_map,
                        const SharedMemory& shared) {
  const bool leader = thread_index() % 32 == 0;
  const ListedItem item = load_listed_item(shared.item());
  const Sequence& own = item.own;
  if (leader) {
    const unsigned barrier = has_foreign_keys(item) ? shared.kv_raw() : shared.kv_full();
    const int row = own.kv_first + item.k0;
    mbarrier_arrive_expect(barrier, kKBytes + kVBytes);
    load_slabs<kQkSlabs>(shared.k(), kKvSlabBytes, k_map, barrier, row, item.h_kv, own.slice,
                         CacheHint::kEvictFirst);
    load_slabs<kVSlabs>(shared.v(), kKvSlabBytes, v_map, barrier, row, item.h_kv, own.slice,
                        CacheHint::kEvictFirst);
  }
  const int group = p.heads / p.kv_heads;
  int head = item.h_kv * group;
  const int end_head = head + group;
  const auto context = [&] { return item_context(p, own, item.b, head, item.h_kv); };
  QueryWalk<kTileQ, kWarpgroups, plan::kRotated> walk;
  walk.begin(context(), item.k0);
  // The next live tile, of this head or the ones after it.
  const auto find = [&](TileInfo& out) {
    while (!walk.next(context(), out)) {
      if (++head >= end_head) return false;
      walk.begin(context(), item.k0);
    }
    out.h = head;
    return true;
  };
  RingPosition at;
  unsigned raw_parity = 0;
  TileInfo info, following;
  bool has_tile = find(info);
  // An item without tiles is told by one behind all tokens: Q and dO come as zeros, and what else
  // comes is not looked at.
  if (!has_tile) info = {-1, item.h_kv * group, 0, 0};
  do {
    const bool more = has_tile && find(following);
    info.more = more ? 1 : 0;
    const int first = max_i32(info.tile, 0) * kTileQ;
    const int row = info.tile < 0 ? p.q_len : own.q_first + first;
    const int own_rows = info.tile < 0 ? kTileQ : own.q_len - first;
    const bool has_foreign = own_rows < kTileQ;
    mbarrier_wait(shared.q_empty(at.stage), at.parity ^ 1);
    if (leader) {
      store_tile_info(shared.tile(at.stage), info);
      const unsigned barrier = has_foreign ? shared.q_raw() : shared.q_full(at.stage);
      const long long known = first_padded_row(p, own, item.b, info.h) + first;
      mbarrier_arrive_expect(barrier, kQBytes + kReferenceBytes);
      load_slabs<kQkSlabs>(shared.q(at.stage), kQSlabBytes, q_map, barrier, row, info.h, own.slice,
                           CacheHint::kEvictLast);
      bulk_load(shared.references(at.stage),
                p.row_references + known * (kReferenceBytes / kTileQ / 4), kReferenceBytes,
                barrier);
    }
    mbarrier_wait(shared.do_empty(at.stage), at.parity ^ 1);
    if (leader) {
      const unsigned barrier = has_foreign ? shared.q_raw() : shared.do_full(at.stage);
      const long long known = first_padded_row(p, own, item.b, info.h) + first;
      mbarrier_arrive_expect(barrier, kDoBytes + kDeltaBytes);
      load_slabs<kVSlabs>(shared.d_o(at.stage), kQSlabBytes, do_map, barrier, row, info.h,
                          own.slice, CacheHint::kEvictLast);
      bulk_load(shared.deltas(at.stage), p.row_deltas + known * (kDeltaBytes / 4 / kTileQ),
                kDeltaBytes, barrier);
    }
    if (has_foreign) {
      clear_foreign_queries(own_rows, at.stage, raw_parity, shared);
      raw_parity ^= 1;
    }
    at.advance();
    has_tile = more;
    info = following;
  } while (has_tile);
}

// ---- Gradients of keys whose tile goes on behind the sequence.

// Of a warp's 16 rows of the matrix, which leave_key_rows() left, the first `count`.
template <int kColumns>
ATT_FN void copy_rows(char* out, long long stride_bytes, const KeyRows& from, int row, int count) {
  constexpr int kUnits = kColumns / 8;
#pragma unroll 1
  for (int i = thread_index() % 32; i < 16 * kUnits; i += 32) {
    const int at = i / kUnits, unit = i % kUnits;
    if (at < count) {
      copy_shared_to_global_16(
          out + at * stride_bytes + unit * 16,
          swizzled(from.matrix + unit / 8 * from.slab_bytes, row + at, unit % 8));
    }
  }
}

}  // namespace sm90
}  // namespace att
