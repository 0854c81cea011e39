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
  int flags;  // bit i: all of it is live for the i-th block of keys; or kDropped; kAllOfQueries
  int more;   // 0: this is the work item's last tile; else 1, and what is_dead_for() asks for
};

// The loader knows in `flags` which blocks of the keys a tile is dead for; consumers read it in
// `more`, of a tile that others follow.
constexpr int kDeadShift = 4;
constexpr int kDeadBits = 0xf << kDeadShift;
template <bool kTellsOfDead>
ATT_FN void tell_what_follows(TileInfo& info, bool more) {
  info.more = more ? 1 : 0;
  if constexpr (kTellsOfDead) {
    if (more) info.more |= info.flags & kDeadBits;
    info.flags &= ~kDeadBits;
  }
}

// Whether no query of a stage's tile sees the block's keys.
ATT_FN bool is_dead_for(unsigned address, int block) {
  return (load_uniform_word(address + 12) >> (kDeadShift + block) & 1) != 0;
}

// It stands for the tiles of an item that has none: what becomes of it is dropped, since operands
// that no pair is made of may be anything.
constexpr int kDropped = 1 << 16;
// Where key tiles of all heads are listed: no other keys are live for the tile's queries.
constexpr int kAllOfQueries = 1 << 17;

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

constexpr int kKeys = 64;  // of a block, which tiles are classified for, unless a walk says so

// Whether tiles are walked downwards, where that is not the same for all items.
template <bool kEitherWay>
struct WalkDirection {
  bool goes_down = false;
  ATT_MEMBER void turn_round(bool down) { goes_down = down; }
};
template <>
struct WalkDirection<false> {
  ATT_MEMBER void turn_round(bool) {}
};

// Upwards through the tiles of kTileQ queries of one head that are live for kKeyBlocks blocks of
// keys from k0 on; kRotated: without a mask, key tiles that run together begin with different ones.
// With a mask each lane classifies a tile for one block. The whole warp calls next(). kEitherWay:
// with a mask some items go downwards. kTellsOfDead: with a mask, blocks that a tile is dead for
// are told, too. kBlockKeys: of a block.
template <int kTileQ, int kKeyBlocks, bool kRotated, bool kEitherWay = false,
          bool kTellsOfDead = false, int kBlockKeys = kKeys>
struct QueryWalk : WalkDirection<kEitherWay> {
  static constexpr int kTileKv = kKeyBlocks * kBlockKeys;
  // [first, last)
  struct Tiles {
    int first, last;
    ATT_MEMBER bool has(int tile) const { return tile >= first && tile < last; }
  };
  int k0;
  Tiles tiles;          // within the mask's bounds
  int base;             // tile of lane 0; without a mask the next one, less `shift`
  int shift = 0;        // tiles are taken from there on, and then from the start
  unsigned live, full;  // of the lanes; live only of tiles to come

  static constexpr int kParts = kKeyBlocks <= 1 ? 1 : kKeyBlocks <= 2 ? 2 : 4;
  static constexpr int kStep = spec::kHasMask ? 32 / kParts : 1;

  static ATT_MEMBER Tiles tiles_of(const Context& c, int k0) {
    QBounds bounds{0, c.q_len};
    if constexpr (spec::kHasMask) {
      // Of a packed sequence without queries no look-up is proven.
      if (!spec::kIsPacked || c.q_len > 0) {
        bounds = q_bounds(c, k0, min_i32(k0 + kTileKv, c.kv_len));
      }
    }
    const int first = bounds.begin / kTileQ;
    return {first, bounds.begin < bounds.end ? (bounds.end + kTileQ - 1) / kTileQ : first};
  }
  // Of one of these and a block of the keys.
  static ATT_MEMBER TileClass class_of(const Context& c, int tile, int k0, int block) {
    const int q0 = tile * kTileQ, key = k0 + block * kBlockKeys;
    if (block >= kKeyBlocks || key >= c.kv_len) return TileClass::kSkip;
    return classify_tile(c, q0, min_i32(q0 + kTileQ, c.q_len), key,
                         min_i32(key + kBlockKeys, c.kv_len));
  }

  ATT_MEMBER void begin(const Context& c, int at_k0) {
    k0 = at_k0;
    live = full = 0;
    tiles = tiles_of(c, k0);
    base = tiles.first - kStep;
    // CTAs that run together then do not add to the same tiles of dQ.
    if constexpr (kRotated) {
      shift = static_cast<int>(static_cast<long long>(tiles.last) * k0 / c.kv_len);
    }
  }

  // Of all tiles these alone, before the first is asked for.
  ATT_MEMBER void keep(const Tiles& part) {
    tiles = part;
    base = tiles.first - kStep;
  }

  // False when there is none left.
  ATT_MEMBER bool next(const Context& c, TileInfo& info) {
    if constexpr (!spec::kHasMask) {
      base += 1;
      info.tile = base + shift < tiles.last ? base + shift : base + shift - tiles.last;
      info.flags = 0;
#pragma unroll
      for (int i = 0; i < kKeyBlocks; ++i) {
        if (k0 + (i + 1) * kBlockKeys <= c.kv_len) info.flags |= 1 << i;
      }
      return base < tiles.last;
    }
    while (live == 0) {
      if (!look(c)) return false;
    }
    take(info);
    return true;
  }

  // With a mask its parts: looks at the next few tiles, false when there are none; and takes one of
  // those found.
  ATT_MEMBER bool look(const Context& c) {
    if (base + kStep >= tiles.last) return false;
    base += kStep;
    classify(c);
    return true;
  }
  ATT_MEMBER void take(TileInfo& info) {
    const int tile = lowest_bit(live) / kParts;
    constexpr unsigned kTileParts = (1u << kParts) - 1;
    info.tile = place(base + tile);
    info.flags = full >> tile * kParts & kTileParts;
    if constexpr (kTellsOfDead) {
      info.flags |= (~live >> tile * kParts & kTileParts) << kDeadShift;
    }
    live &= ~(kTileParts << tile * kParts);
  }

 private:
  // Downwards tiles are counted from the last one.
  ATT_MEMBER int place(int tile) const {
    if constexpr (kEitherWay) {
      if (this->goes_down) return tiles.first + tiles.last - 1 - tile;
    }
    return tile;
  }
  static ATT_MEMBER int lowest_bit(unsigned bits) { return highest_bit(bits & (0 - bits)); }

  ATT_MEMBER void classify(const Context& c) {
    const int lane = thread_index() % 32;
    const int tile = base + lane / kParts;
    const int part = lane % kParts;
    TileClass found = TileClass::kSkip;
    if (tile < tiles.last) found = class_of(c, place(tile), k0, part);
    live = ballot(found != TileClass::kSkip);
    full = ballot(found == TileClass::kFull && k0 + (part + 1) * kBlockKeys <= c.kv_len);
  }
};

}  // namespace sm90
}  // namespace att
