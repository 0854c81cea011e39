// The query tiles that a tile of keys must visit, found by the loader warp and told to the
// consumers through the stages: no list is stored.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/sm90_cta.cuh"

namespace att {
namespace sm90 {

// What a stage says of its tile.
struct TileInfo {
  int tile;   // first query / kTileQ
  int h;      // query head
  int flags;  // bit i: all of it is live for the i-th 64 keys
  int more;   // of the work item's tiles that follow; 0: this is the last one
};

ATT_FN void store_tile_info(unsigned address, const TileInfo& info) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(info.tile),
               "r"(info.h), "r"(info.flags), "r"(info.more)
               : "memory");
}

// The same in all lanes, and known to be so.
ATT_FN TileInfo load_tile_info(unsigned address) {
  int word[4];
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address)
               : "memory");
  return {shuffle_from(word[0], 0), shuffle_from(word[1], 0), shuffle_from(word[2], 0),
          shuffle_from(word[3], 0)};
}

constexpr int kKeys = 64;  // of a block, which tiles are classified for

// Upwards through the tiles of kTileQ queries of one head that are live for kKeyBlocks blocks of
// keys from k0 on; kRotated: without a mask, key tiles that run together begin with different ones.
// With a mask each lane classifies a tile for one block. The whole warp calls next().
template <int kTileQ, int kKeyBlocks, bool kRotated>
struct QueryWalk {
  static constexpr int kTileKv = kKeyBlocks * kKeys;
  int k0;
  int first, last;      // tiles within the mask's bounds: [first, last)
  int base;             // tile of lane 0; without a mask the next one, less `shift`
  int shift = 0;        // tiles are taken from there on, and then from the start
  unsigned live, full;  // of the lanes; live only of tiles to come

  static constexpr int kParts = kKeyBlocks <= 1 ? 1 : kKeyBlocks <= 2 ? 2 : 4;
  static constexpr int kStep = spec::kHasMask ? 32 / kParts : 1;

  ATT_MEMBER void begin(const Context& c, int at_k0) {
    k0 = at_k0;
    live = full = 0;
    QBounds bounds{0, c.q_len};
    if constexpr (spec::kHasMask) {
      // Of a packed sequence without queries no look-up is proven.
      if (!spec::kIsPacked || c.q_len > 0)
        bounds = q_bounds(c, k0, min_i32(k0 + kTileKv, c.kv_len));
    }
    first = bounds.begin / kTileQ;
    last = bounds.begin < bounds.end ? (bounds.end + kTileQ - 1) / kTileQ : first;
    base = first - kStep;
    // CTAs that run together then do not add to the same tiles of dQ.
    if constexpr (kRotated) {
      shift = static_cast<int>(static_cast<long long>(last) * k0 / c.kv_len);
    }
  }

  // False when there is none left.
  ATT_MEMBER bool next(const Context& c, TileInfo& info) {
    if constexpr (!spec::kHasMask) {
      base += 1;
      info.tile = base + shift < last ? base + shift : base + shift - last;
      info.flags = 0;
#pragma unroll
      for (int i = 0; i < kKeyBlocks; ++i) {
        if (k0 + (i + 1) * kKeys <= c.kv_len) info.flags |= 1 << i;
      }
      return base < last;
    }
    while (live == 0) {
      if (base + kStep >= last) return false;
      base += kStep;
      classify(c);
    }
    const int tile = lowest_bit(live) / kParts;
    constexpr unsigned kTileParts = (1u << kParts) - 1;
    info.tile = base + tile;
    info.flags = full >> tile * kParts & kTileParts;
    live &= ~(kTileParts << tile * kParts);
    return true;
  }

 private:
  static ATT_MEMBER int lowest_bit(unsigned bits) { return highest_bit(bits & (0 - bits)); }

  ATT_MEMBER void classify(const Context& c) {
    const int lane = thread_index() % 32;
    const int tile = base + lane / kParts;
    const int part = lane % kParts;
    const int q0 = tile * kTileQ;
    const int key = k0 + part * kKeys;
    const int k1 = min_i32(key + kKeys, c.kv_len);
    TileClass found = TileClass::kSkip;
    if (tile < last && part < kKeyBlocks && key < k1) {
      found = classify_tile(c, q0, min_i32(q0 + kTileQ, c.q_len), key, k1);
    }
    live = ballot(found != TileClass::kSkip);
    full = ballot(found == TileClass::kFull && k1 == key + kKeys);
  }
};

}  // namespace sm90
}  // namespace att
