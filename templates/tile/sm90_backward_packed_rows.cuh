// Rows of dQ of packed sequences in the sm90a family's backward kernel. Short sequences have query
// tiles whose live keys all lie in one tile of keys: of those the CTA of these keys makes all of
// dQ, and stores it. The others' sums a launch of its own brings to rows.
#pragma once

#include "templates/kernels/backward_head.cuh"
#include "templates/sequence.h"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/learned_totals.cuh"
#include "templates/tile/sm90_backward_layout.cuh"
#include "templates/tile/sm90_backward_sums.cuh"
#include "templates/tile/sm90_backward_walk.cuh"
#include "templates/work_items.h"

namespace att {
namespace sm90 {

// Keys that a tile of queries of the context's sequence and head may see, all in one tile of keys:
// its first one; -1 where there is no such tile.
ATT_FN int only_key_tile(const Context& c, int tile) {
  KvBounds bounds{0, c.kv_len};
  if constexpr (spec::kHasMask) {
    if (c.kv_len > 0) bounds = kv_bounds(c, tile * kTileQ, min_i32((tile + 1) * kTileQ, c.q_len));
  }
  if (bounds.begin >= bounds.end) return -1;
  const int first = bounds.begin / kTileKv * kTileKv;
  return bounds.end <= first + kTileKv ? first : -1;
}
// Of a tile of queries that the CTA of keys from k0 on walks: whether no other CTA adds anything.
ATT_FN bool has_no_other_keys(const Context& c, int tile, int k0) {
  return only_key_tile(c, tile) == k0;
}
// The same, whoever asks: whether there is a CTA that has the tile for itself and walks it.
ATT_FN bool is_of_one_key_tile(const Context& c, int tile) {
  using Walk = QueryWalk<kTileQ, kWarpgroups, false>;
  const int k0 = only_key_tile(c, tile);
  if (k0 < 0) return false;
  if constexpr (spec::kHasMask) {
    if (!Walk::tiles_of(c, k0).has(tile)) return false;
    bool is_live = false;
    for (int block = 0; block < kWarpgroups; ++block) {
      is_live = is_live || Walk::class_of(c, tile, k0, block) != TileClass::kSkip;
    }
    return is_live;
  }
  return true;
}

// Of whose tiles there are sums, for the launch that zeroes them.
struct HasSums {
  // To others nobody adds: for_columns_of_head(). Sums of kDqRows rows lie side by side.
  static constexpr bool kAreFirst = !kTransposesDq && kRowsAtATime == kDqRows;
  static constexpr int kColumns = kAreFirst ? spec::kHeadDimQk : plan::kSumColumns;
  ATT_MEMBER bool operator()(const BackwardParams& p, const Sequence& own, int b, int h,
                             int first_query) const {
    if constexpr (kLoadsKeysApart) {
      static_assert(!kLoadsKeysApart || kRowsAtATime == kTileQ);
      if (first_query >= queries_of(p, own)) return false;
      const Context c = item_context(p, own, b, h, h / (p.heads / p.kv_heads));
      return !is_of_one_key_tile(c, first_query / kTileQ);
    }
    return true;
  }
};

// A tile, told by the number of its sums, of a head of the item.
struct HeadTileOfSums {
  int h, tile;
};
ATT_FN HeadTileOfSums tile_of_sums(const BackwardParams& p, int base, int index) {
  if constexpr (!spec::kIsPacked) {
    const int of_head = padded_rows(p.q_len) / kTileQ;
    return {index / of_head - base, index % of_head};
  }
  const int of_head = sequence_item_count(p.q_len, p.batch, kRowPadding) * (kRowPadding / kTileQ);
  const int h = (index - base) / of_head;
  return {h, index - base - h * of_head};
}

// Brings kRowPadding rows of a head from their sums to rows. A CTA's, a warpgroup a share of a
// tile; the last heads, whose sums L2 may still have, come first. `index`: of these CTAs.
constexpr int kTilesOfPadding = kRowPadding / kTileQ;
ATT_FN void convert_packed_rows(const BackwardParams& p, int index) {
  const int tiles = sequence_item_count(p.q_len, p.batch, kRowPadding);
  const int from_last = index / tiles;
  const int h = p.heads - 1 - from_last;
  const int padded = index - from_last * tiles;
  const int b = sequence_of_tile(p, padded);
  const Sequence own = sequence_of(p, b);
  const int warpgroup = thread_index() / kWarpgroupThreads;
  const int in_padded = warpgroup / kDqShares, share = warpgroup % kDqShares;
  const int first = padded - first_sequence_tile(own.q_first, b, kRowPadding);
  const int tile = first * kTilesOfPadding + in_padded;
  // Behind the sequence, or where offsets are no caller's.
  if (first < 0 || tile >= tile_count(own.q_len, kTileQ)) return;
  if (share == 0 && thread_index() % kWarpgroupThreads < 32) {
    add_sink_gradient(p, own, b, h, tile * kTileQ, min_i32((tile + 1) * kTileQ, own.q_len));
  }
  if (is_of_one_key_tile(item_context(p, own, b, h, h / (p.heads / p.kv_heads)), tile)) return;
  const int sums = (h * tiles + padded) * kTilesOfPadding + in_padded;
  const float* const from =
      p.d_q_sums + sums_offset(sums, share) + thread_index() % kWarpgroupThreads * 4;
  float numbers[kDqNumbers / 4][4];
#pragma unroll
  for (int j = 0; j < kDqNumbers / 4; ++j) load_global_l2_16(from + j * 512, numbers[j]);
  store_share(p, own, h, tile, share, numbers);
}

// Of sequences of batch b that are not packed: whether there are sums of a tile.
struct TileHasSums {
  const BackwardParams& p;
  int b;
  ATT_MEMBER bool operator()(int h, int tile) const {
    const Sequence own = sequence_of(p, b);
    return !is_of_one_key_tile(item_context(p, own, b, h, h / (p.heads / p.kv_heads)), tile);
  }
};

}  // namespace sm90
}  // namespace att
