// Pieces of an item's keys, a CTA each: which keys of the item a piece has, and how the results of
// all of them become the item's.
#pragma once

#include "templates/items.h"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/lane_sums.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

// ---- What a CTA does.

struct PieceOfItem {
  Item item;
  int piece, pieces;
  int result;       // of its results among all_results
  int all_results;  // that the workspace has room for
  int arrivals;     // number of the counter
  int first_cta;    // of the grid, which has the item's first piece
  bool goes_on;     // the CTA has another piece after it
};

// Lengths are those that were listed: another thread may have changed them since. Nothing is
// decided by the number of the sequence alone, or the rest of the entry would be asked for after
// it.
ATT_FN PieceOfItem listed_piece(const PackedParams& p, int index) {
  const PieceItem listed = p.pieces.items[index / p.kv_heads];
  const int h_kv = index % p.kv_heads;
  const Sequence sequence = {listed.q_len, listed.kv_len, 0, listed.q_first, listed.kv_first};
  PieceOfItem own = {};
  own.item =
      item_of(p, sequence, listed.heads_per_item, listed.sequence, h_kv, listed.part, listed.tile);
  if ((listed.sequence | listed.kv_len) < 0) own.item.h1 = own.item.h0;
  own.piece = listed.piece;
  own.pieces = listed.pieces;
  own.arrivals = h_kv * (kMostPieces / p.kv_heads) + listed.result;
  own.result = own.arrivals + listed.piece;
  own.all_results = kMostPieces;
  own.first_cta = index - listed.piece * p.kv_heads;
  return own;
}

// The first entries of a sequence's row of the table, a line each of some threads: while its length
// is asked for, they come.
ATT_FN void ask_for_pages(const PackedParams& p, int b) {
  if constexpr (spec::kIsPaged) {
    constexpr int kOfLine = 32;
    const PageTable& table = page_table_of(p);
    const int entry = kOfLine * thread_index();
    if (thread_index() < 32 && entry < table.pages_per_sequence) {
      prefetch_global(table.entries + static_cast<long long>(b) * table.pages_per_sequence + entry);
    }
  }
}

struct FoundTile {
  int b, tile;  // tile of a K/V head of sequence b; b < 0: there is none
};

// Tile `index` of those that sequences have beyond `of_token` each. Every warp counts them for
// itself, a lane those of some sequences that follow one another, whose lengths it finds in L1 once
// it has asked for the first ones.
ATT_FN FoundTile further_tile(const PackedParams& p, int group, int of_token, int index) {
  // Of a sequence, and of a lane: whatever lengths say, sums fit.
  constexpr int kMostTiles = 1 << 24;
  const auto tiles_of = [&](int b) {
    const int q_len = sequence_of(p, b).q_len;
    if (static_cast<long long>(q_len) * group <= plan::kTileQ) return 0;
    const auto grid = packed_tiles(p.heads, p.kv_heads, q_len, plan::kTileQ);
    return min_i32(grid.per_kv_head() - of_token, kMostTiles);
  };
  const int of_lane = tile_count(p.batch, 32);
  int tiles = 0;
#pragma unroll 1
  for (int i = 0; i < of_lane; ++i) {
    const int b = lane_index() * of_lane + i;
    if (b >= p.batch) break;
    tiles = min_i32(tiles + tiles_of(b), kMostTiles);
  }
  const int up_to = sum_up_to_lane(tiles);
  const unsigned has_it = ballot(up_to > index);
  if (has_it == 0) return {-1, 0};
  const int lane = highest_bit(has_it & (0u - has_it));
  index -= shuffle_from(up_to - tiles, lane);
#pragma unroll 1
  for (int b = lane * of_lane; b < p.batch; ++b) {
    const int own = tiles_of(b);
    if (index < own) return {b, of_token + index};
    index -= own;
  }
  return {-1, 0};
}

// Item `index` of a K/V head's of all packed sequences: first the tiles that each sequence has if
// it has a single query, so that a token's CTAs ask for no other sequence's length, then all
// others, in the order of sequences. No rows where there is none.
ATT_FN Item found_item(const PackedParams& p, int h_kv, int index) {
  const int group = p.heads / p.kv_heads;
  const int of_token = tile_count(group, plan::kTileQ);
  FoundTile found = {index, 0};
  if (of_token > 1) found = {index / of_token, index % of_token};
  if (found.b >= p.batch) found = further_tile(p, group, of_token, index - p.batch * of_token);
  if (found.b < 0) return {};
  ask_for_pages(p, found.b);
  Sequence sequence = sequence_of(p, found.b);
  sequence.kv_len = opaque(sequence.kv_len);  // asked for beside q_len, not after it
  if (sequence.q_len <= 0) return {};
  const auto grid = packed_tiles(p.heads, p.kv_heads, sequence.q_len, plan::kTileQ);
  return item_of(p, sequence, grid.heads_per_item, found.b, h_kv, found.tile % grid.head_parts,
                 found.tile / grid.head_parts);
}

// Whether CTAs of packed sequences find their items for themselves, those of a cluster the same
// one.
constexpr bool kFindsItems =
    spec::kIsPacked &&
    (plan::kInCluster || (plan::kPieces == 1 && !plan::kTakesStretches && !plan::kFillsProcessors));

ATT_FN PieceOfItem piece_at(const PackedParams& p, int index) {
  if constexpr (plan::kInCluster || kFindsItems) {
    const int item = index / plan::kPieces;
    PieceOfItem own = {};
    own.item =
        spec::kIsPacked ? found_item(p, item % p.kv_heads, item / p.kv_heads) : item_at(p, item);
    own.piece = index % plan::kPieces;
    own.pieces = plan::kPieces;
    return own;
  }
  if constexpr (spec::kIsPacked) return listed_piece(p, index);
  const int items = item_count(p);
  const int pieces = piece_count(items, plan::kPieces);
  const int item = index / pieces;
  return {item_at(p, item), index % pieces, pieces, index, items * pieces, item, item * pieces};
}

// ---- Units of keys. Pieces share out those that the mask leaves, so that a window in a long
// context is dealt to all of them.

constexpr int kUnitKeys = 64;  // at least

// Of an item's units; where its keys make more of kUnitKeys, units are larger. kMostUnits: a power
// of two from 512 on.
template <int kMostUnits>
struct UnitTableOf {
  unsigned live[kMostUnits / 32], full[kMostUnits / 32];
  int listed[kMostUnits];  // those of the piece: 2 * unit + (1 when full)
};
using UnitTable = UnitTableOf<2048>;
using SmallTable = UnitTableOf<512>;  // of the mla family

// Whether units of which all are live need not be listed. Not where a mask may look numbers up, as
// those of all keys would be read twice. Of the mla family ptxas would spill more.
template <int kMostUnits>
constexpr bool kMayBeAllLive = sizeof(UnitTableOf<kMostUnits>) > sizeof(SmallTable) &&
                               !plan::kMayReadTensors;

// Of a piece.
struct Units {
  int first_key;  // of unit 0
  int keys;       // of a unit, a power of two
  int begin;      // number of the first one
  int count;
  bool are_listed = false;  // else they follow one another
};
struct Unit {
  int k0;
  bool full;  // it lies within kv_len, and all its elements are live
};

template <int kMostUnits>
ATT_FN Unit unit_at(const Units& units, const UnitTableOf<kMostUnits>& table, int i, int kv_len) {
  if (spec::kHasMask && (!kMayBeAllLive<kMostUnits> || units.are_listed)) {
    const int listed = table.listed[i];
    return {units.first_key + listed / 2 * units.keys, listed % 2 != 0};
  }
  const int k0 = (spec::kHasMask ? units.first_key : 0) + (units.begin + i) * units.keys;
  return {k0, kv_len - k0 >= units.keys};
}

// Parts [begin, end) of `all` that an item's live units are taken apart into.
struct UnitShare {
  int begin, end, all;
};

// Which of all units are live and full, as the item's mask says. The whole CTA calls it, and
// synchronises afterwards. A warp has every kWarps-th word of 32 units: a lane looks at one as a
// whole first, and where that is neither dead nor full each lane at a unit. (A loop, so that the
// mask's code is there once.)
template <int kWarps, int kMostUnits>
ATT_FN void classify_units(const ForwardParams& p, const Item& item, const Units& all,
                           UnitTableOf<kMostUnits>& table) {
  constexpr int kWords = kMostUnits / 32;
  const int lane = lane_index(), kv_len = item.sequence.kv_len;
#pragma unroll 1
  for (int base = warp_index(); base < kWords; base += 32 * kWarps) {
    unsigned partial = 0;  // words of the lanes that are to be looked at
#pragma unroll 1
    for (bool whole = true; whole || partial != 0; whole = false) {
      const int of_lane = whole ? lane : highest_bit(partial);
      const int word = base + of_lane * kWarps;
      const int unit = 32 * word + (whole ? 0 : lane), count = whole ? 32 : 1;
      TileClass found = TileClass::kSkip;
      bool is_all = false;
      if (word < kWords && unit < all.count) {
        const int k0 = all.first_key + unit * all.keys;
        const int k1 = min_i32(kv_len - k0, count * all.keys) + k0;
        found = class_of(p, item, k0, k1);
        is_all = found == TileClass::kFull && k1 - k0 == count * all.keys;
      }
      const unsigned live = ballot(found != TileClass::kSkip), full = ballot(is_all);
      if (whole) {
        partial = live & ~full;
        if (word < kWords && (partial >> lane & 1) == 0) {
          table.live[word] = table.full[word] = is_all ? ~0u : 0;
        }
      } else {
        partial ^= 1u << of_lane;
        if (lane == 0) {
          table.live[word] = live;
          table.full[word] = full;
        }
      }
    }
  }
}

// The whole CTA calls it. All threads may read the table afterwards.
template <int kWarps, int kMostUnits>
ATT_FN Units units_of(const ForwardParams& p, const Item& item, const UnitShare& of,
                      UnitTableOf<kMostUnits>& table) {
  const int kv_len = item.sequence.kv_len;
  const auto share = [&](int all, int which) {
    return static_cast<int>(static_cast<long long>(all) * which / of.all);
  };
  if constexpr (!spec::kHasMask) {
    const int all = tile_count(kv_len, kUnitKeys);
    const int begin = share(all, of.begin);
    return {0, kUnitKeys, begin, share(all, of.end) - begin};
  }
  Item judged = item;  // one head speaks for all where the mask does not tell them apart
  if (!plan::kMaskReadsHead) judged.h1 = judged.h0 + 1;
  const KvBounds bounds = bounds_of(p, judged);
  const int first_key = bounds.begin / kUnitKeys * kUnitKeys;
  const int span = bounds.begin < bounds.end ? bounds.end - first_key : 0;
  int keys = kUnitKeys;
  while (tile_count(span, keys) > kMostUnits) keys *= 2;
  const int count = tile_count(span, keys);
  // A single token of a causal mask sees all keys: then nothing need be looked for.
  if constexpr (kMayBeAllLive<kMostUnits>) {
    const int last_key = min_i32(kv_len - first_key, count * keys) + first_key;
    if (item.queries() == 1 && count > 0 &&
        class_of(p, judged, first_key, last_key) == TileClass::kFull) {
      const int begin = share(count, of.begin);
      return {first_key, keys, begin, share(count, of.end) - begin};
    }
  }
  classify_units<kWarps>(p, judged, {first_key, keys, 0, count}, table);
  sync_threads();
  // Every warp finds how many there are, and lists those of the piece in some of the words, a lane
  // each. (One warp, a lane for each word and a unit after the other, took 1.5 us of a window.)
  const int lane = lane_index();
  constexpr int kWords = kMostUnits / 32;
  constexpr int kWordsOfLane = kWords < 32 ? 1 : kWords / 32;
  int own = 0;
  if (kWords >= 32 || lane < kWords) {
#pragma unroll
    for (int i = 0; i < kWordsOfLane; ++i) own += bit_count(table.live[kWordsOfLane * lane + i]);
  }
  const int up_to = sum_up_to_lane(own);
  const int live_units = shuffle_from(up_to, 31);
  const int begin = share(live_units, of.begin), end = share(live_units, of.end);
#pragma unroll 1
  for (unsigned lanes = ballot(own != 0 && lane % kWarps == warp_index()); lanes != 0;
       lanes &= lanes - 1) {
    const int from = highest_bit(lanes & (0u - lanes));
    int rank = shuffle_from(up_to - own, from);
#pragma unroll
    for (int i = 0; i < kWordsOfLane; ++i) {
      const int word = kWordsOfLane * from + i;
      const unsigned live = table.live[word];
      const int place = rank + bit_count(live & ((1u << lane) - 1)) - begin;
      if ((live >> lane & 1) != 0 && place >= 0 && place < end - begin) {
        table.listed[place] =
            2 * (32 * word + lane) + static_cast<int>(table.full[word] >> lane & 1);
      }
      rank += bit_count(live);
    }
  }
  sync_threads();
  return {first_key, keys, begin, end - begin, true};
}

// One of equal pieces.
template <int kWarps, int kMostUnits>
ATT_FN Units units_of(const ForwardParams& p, const Item& item, int piece, int pieces,
                      UnitTableOf<kMostUnits>& table) {
  return units_of<kWarps>(p, item, {piece, piece + 1, pieces}, table);
}

// Of a stretch's piece, which without a mask has counted the very units, or a listed one.
template <int kMostUnits>
ATT_FN Units units_of_piece(const ForwardParams& p, const Item& item, const UnitShare& shares,
                            UnitTableOf<kMostUnits>& table) {
  if constexpr (plan::kTakesStretches && !spec::kHasMask) {
    return {0, kUnitKeys, shares.begin, shares.end - shares.begin};
  }
  return units_of<plan::kWarps>(p, item, shares, table);
}

// ---- Results. A part is what some keys give for the item's rows: O that is not divided by the sum
// yet, the reference in units of kReferenceUnit, the sum. P = exp2(s - reference), in log2 units.

// Row r of part i of an item has its O at outputs + (i * kRows + r) * kStride, and (reference, sum)
// at statistics + 2 * (i * kRows + r). Outputs start at a multiple of 16 bytes.
template <int kRows, int kStride>
struct Parts {
  float* outputs;
  float* statistics;
  int count;

  ATT_MEMBER float* output(int part, int row) const {
    return outputs + static_cast<long long>(part * kRows + row) * kStride;
  }
  ATT_MEMBER float* statistic(int part, int row) const {
    return statistics + 2 * (part * kRows + row);
  }
};

// What parts weigh in their sum, in shared memory.
template <int kMostParts, int kRows>
struct Weights {
  float of[kRows][kMostParts];
  float reference[kRows], sum[kRows];
};

struct __align__(16) FourFloats {
  float x[4];
};
struct __align__(8) Statistic {
  float reference, sum;
};

// To global memory in one store: of four, each would go to other bytes of all sectors of a row.
ATT_FN void store_result(float* output, const FourFloats& of) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __builtin_bit_cast(unsigned, of.x[i]);
  store_global_16(output, words);
}

// The least number of bits with which n values are told apart.
ATT_FN constexpr int bits_for(int n) {
  int bits = 0;
  while (1 << bits < n) ++bits;
  return bits;
}

// The whole CTA calls it, and may read the weights of rows [first_row, end_row) afterwards. A row
// has as many lanes as there are parts, or a warp's, and all that they read is on its way at once.
// Sums are made in an order that depends on nothing but the number of parts.
template <int kWarps, int kRows, int kStride, int kMostParts>
ATT_FN void weigh(const Parts<kRows, kStride>& parts, int first_row, int end_row,
                  Weights<kMostParts, kRows>& weights) {
  constexpr int kOfLane = (kMostParts + 31) / 32;
  const int lane_bits = bits_for(parts.count < 32 ? parts.count : 32);
  const int lanes = 1 << lane_bits;
  const int first_part = lane_index() & (lanes - 1);
#pragma unroll 1
  for (int first = first_row; first < end_row; first += 32 * kWarps >> lane_bits) {
    const int row = first + (thread_index() >> lane_bits);
    float references[kOfLane], sums[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      references[i] = -infinity();
      sums[i] = 0.0f;
      const int part = first_part + 32 * i;
      if (row < end_row && part < parts.count) {
        const auto of = *reinterpret_cast<const Statistic*>(parts.statistic(part, row));
        references[i] = of.reference;
        sums[i] = of.sum;
      }
    }
    float reference = -infinity(), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) reference = math_max(reference, references[i]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      if (distance < lanes) reference = math_max(reference, shuffle_xor(reference, distance));
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int part = first_part + 32 * i;
      const float weight = math_exp2(as_log2(references[i] - finite(reference)));
      if (row < end_row && part < parts.count) weights.of[row][part] = weight;
      sum += weight * sums[i];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      if (distance < lanes) sum += shuffle_xor(sum, distance);
    }
    if (row < end_row && first_part == 0) {
      weights.reference[row] = reference;
      weights.sum[row] = sum;
    }
  }
  sync_threads();
}

// Four columns of a row, from `column` on, of the sum of the weighted parts.
template <int kRows, int kStride, int kMostParts>
ATT_FN FourFloats merge(const Parts<kRows, kStride>& parts,
                        const Weights<kMostParts, kRows>& weights, int row, int column) {
  FourFloats merged = {};
#pragma unroll 8
  for (int part = 0; part < parts.count; ++part) {
    const auto o = *reinterpret_cast<const FourFloats*>(parts.output(part, row) + column);
    const float weight = weights.of[row][part];
#pragma unroll
    for (int i = 0; i < 4; ++i) merged.x[i] += weight * o.x[i];
  }
  return merged;
}

}  // namespace att
