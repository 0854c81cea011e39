// What a work item is to a warpgroup, and its live kv tiles, found by the loader warps and told to
// the consumers through the stages: no list is stored.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_key_pieces.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// The 64 query rows of a warpgroup: of an item that begins at query q0, slice `slice`. Of several
// heads' rows those of number `part`, so that row i of the 64 is query `row` + i.
struct Slice {
  int h, row;
};
// With kHeadsAbreast: of the item, number `head`.
ATT_FN bool has_head(const Context& c, int head) {
  return c.h + head < (c.h_kv + 1) * (c.params.heads / c.params.kv_heads);
}
ATT_FN Slice slice_of(const Context& c, int q0, int slice, int part = 0) {
  if constexpr (!kHeadsAbreast) return {c.h, q0 + slice * kRows};
  const int head = slice * kHeadsOfSlice + part;
  // Where no head of the K/V head is left these are rows past the last query.
  return has_head(c, head) ? Slice{c.h + head, q0 - part * kHeadRows} : Slice{c.h, c.q_len};
}
// Which of its warpgroup's heads a consumer's warp has.
ATT_FN int part_of_warp() {
  if constexpr (kHeadsOfSlice == 1) return 0;
  return shuffle_from(thread_index() % kWarpgroupThreads / 32, 0) * 16 / kHeadRows;
}

// What a consumer must know of a tile before it comes: a stage says it of the tile after its own,
// so that nothing is read between the arrival of K and the product that takes it.
struct TileInfo {
  int tile;   // first key / kTileKv
  int flags;  // which pieces are live, and full, for which warpgroup; bit 0: it is there
};
constexpr int kNoTile = 0;
constexpr int kIsTile = 1;
// Of the bit of piece 0.
constexpr int kLiveShift = 1;
constexpr int kFullShift = 9;
ATT_FN int live_shift(int warpgroup) { return kLiveShift + kPieces * warpgroup; }
ATT_FN int full_shift(int warpgroup) { return kFullShift + kPieces * warpgroup; }

ATT_FN void store_tile_info(unsigned address, const TileInfo& info) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(info.tile), "r"(info.flags)
               : "memory");
}

// What one warp tells another lane 0 reads for its warp, as it is lane 0 that then gives the place
// back. (Registers that only some lanes load are set before, or they are in use from the kernel's
// start to the last such load.)
ATT_FN int load_word(unsigned address) {
  int value;
  asm volatile(
      "{\n.reg .pred first;\nsetp.eq.u32 first, %2, 0;\n"
      "mov.b32 %0, 0;\n@first ld.shared.b32 %0, [%1];\n}"
      : "=r"(value)
      : "r"(address), "r"(thread_index() % 32)
      : "memory");
  return shuffle_from(value, 0);
}

ATT_FN TileInfo load_tile_info(unsigned address) {
  TileInfo info;
  asm volatile(
      "{\n.reg .pred first;\nsetp.eq.u32 first, %3, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\n@first ld.shared.v2.b32 {%0, %1}, [%2];\n}"
      : "=r"(info.tile), "=r"(info.flags)
      : "r"(address), "r"(thread_index() % 32)
      : "memory");
  return {shuffle_from(info.tile, 0), shuffle_from(info.flags, 0)};
}

// Whether keys are walked upwards: where the rows of a mask begin together, as under a causal one,
// so that CTAs that start together read the same K and V together, which takes a fifth of the reads
// off L2 (with two score buffers the masked tiles cost less at an item's start than at its end);
// and where the score itself falls with the key, as a relative bias may, so that the first tiles
// hold the largest scores and the reference taken from them lasts. The item's first query speaks
// for all.
ATT_FN bool walks_up(const Context& c, int q0) {
  if (spec::kIsPacked && c.kv_len == 0) return false;  // look-ups are proven for one key at least
  if constexpr (!kScoreVariesByKey) return kPieces == 1 && kRowIsRange && !kRowHasBegin;
  return score(c, 0.0f, q0, 0) > score(c, 0.0f, q0, c.kv_len - 1);
}

// The tiles of a cluster's query rows that are not dead, from the last down to the first, or
// upwards. With a mask each lane classifies a piece of a tile for the rows of one warpgroup; a tile
// is live when one of its pieces is for one of the cluster's. A full piece lies within kv_len. The
// whole warp calls next().
struct ClusterWalk {
  int q0;
  int up;
  int first, last;      // tiles within the mask's bounds: [first, last)
  int base;             // tile of lane 0; without a mask the next one
  unsigned live, full;  // of the lanes' pieces; live only of tiles to come

  // Heads abreast have the same queries, and so the same parts.
  static constexpr int kPartsUsed = (kHeadsAbreast ? 1 : kSlices) * kPieces;
  // Lanes that share a tile, and tiles that are classified together.
  static constexpr int kParts = kPartsUsed <= 1   ? 1
                                : kPartsUsed <= 2 ? 2
                                : kPartsUsed <= 4 ? 4
                                : kPartsUsed <= 8 ? 8
                                                  : 16;
  static constexpr int kStep = spec::kHasMask ? 32 / kParts : 1;

  ATT_MEMBER void begin(const Context& c, int at_q0) {
    q0 = at_q0;
    live = 0;
    up = walks_up(c, q0);
    KvBounds bounds{0, c.kv_len};
    if (spec::kHasMask && (!spec::kIsPacked || c.kv_len > 0))
      bounds = kv_bounds(c, q0, min_i32(q0 + kItemQueries, c.q_len));
    first = bounds.begin / kTileKv;
    last = bounds.begin < bounds.end ? (bounds.end + kTileKv - 1) / kTileKv : first;
    base = up ? first - kStep : last;
  }

  // Leaves a piece's tiles alone, before the first next().
  ATT_MEMBER void cut(const KeyPiece& own) {
    const TileSpan tiles = tiles_of_piece(first, last, own);
    first = tiles.begin;
    last = tiles.end;
    base = up ? first - kStep : last;
  }

  // kNoTile when there is none left.
  ATT_MEMBER TileInfo next(const Context& c, int cta_rank) {
    if constexpr (!spec::kHasMask) {
      base += up ? 1 : -1;
      return {base, base >= first && base < last ? kIsTile : kNoTile};
    }
    while (live == 0) {
      if (up ? base + kStep >= last : base <= first) return {0, kNoTile};
      base += up ? kStep : -kStep;
      classify(c);
    }
    const int tile = highest_bit(up ? live & (0 - live) : live) / kParts;
    constexpr unsigned kTileParts = (1u << kParts) - 1;
    const int flags = kIsTile | own_parts(c, live, tile, cta_rank) << kLiveShift |
                      own_parts(c, full, tile, cta_rank) << kFullShift;
    live &= ~(kTileParts << tile * kParts);
    return {base + tile, flags};
  }

  // Between the warp that begins the walk and the one that goes on with it: store() by one thread.
  ATT_MEMBER void store(unsigned address) const {
    store_shared_4(address, first);
    store_shared_4(address + 4, last);
    store_shared_4(address + 8, base);
    store_shared_4(address + 12, live);
    store_shared_4(address + 16, full);
  }
  ATT_MEMBER void load(unsigned address, const Context& c, int at_q0) {
    q0 = at_q0;
    up = walks_up(c, q0);
    first = load_word(address);
    last = load_word(address + 4);
    base = load_word(address + 8);
    live = load_word(address + 12);
    full = load_word(address + 16);
  }

 private:
  // Of a tile's parts those of the CTA's warpgroups.
  static ATT_MEMBER unsigned own_parts(const Context& c, unsigned parts, int tile, int cta_rank) {
    if constexpr (!kHeadsAbreast) {
      constexpr unsigned kOwnParts = (1u << (kWarpgroups * kPieces)) - 1;
      return parts >> (tile * kParts + cta_rank * kWarpgroups * kPieces) & kOwnParts;
    }
    parts = parts >> tile * kParts & ((1u << kPieces) - 1);
    unsigned own = 0;
#pragma unroll
    for (int warpgroup = 0; warpgroup < kWarpgroups; ++warpgroup) {
      if (has_head(c, warpgroup * kHeadsOfSlice)) own |= parts << warpgroup * kPieces;
    }
    return own;
  }

  ATT_MEMBER void classify(const Context& c) {
    const int lane = thread_index() % 32;
    const int tile = base + lane / kParts;
    const int part = lane % kParts;
    const int row = q0 + part / kPieces * kRows;
    const int k0 = tile * kTileKv + part % kPieces * kPieceKeys;
    const int k1 = min_i32(k0 + kPieceKeys, c.kv_len);
    TileClass found = TileClass::kSkip;
    if (tile >= first && tile < last && part < kPartsUsed && row < c.q_len && k0 < k1) {
      found = classify_tile(c, row, min_i32(row + kHeadRows, c.q_len), k0, k1);
    }
    live = ballot(found != TileClass::kSkip);
    full = ballot(found == TileClass::kFull && k1 == k0 + kPieceKeys);
  }
};

}  // namespace sm90
}  // namespace att
