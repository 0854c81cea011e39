// How a launch's work divides into items: once, for the kernels of every family and for the host's
// grids and cost models. Int is 64 bits on the host, which refuses a launch whose items an int
// cannot number, and int in kernels.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// ---- Tiles of the sequences of heads, of queries or of keys.

template <typename Int>
ATT_FN constexpr Int tile_count(Int length, Int tile) {
  return (length + tile - 1) / tile;
}

// Items that a CPU's backward pass makes of a K/V head, each with sums of dQ of its own: where
// there are few heads, threads end far apart. Of many they would only take memory. 16 heads on 16
// threads left 20 % of them idle.
template <typename Int>
ATT_FN constexpr Int head_parts(Int heads) {
  return heads >= 64 ? 1 : heads >= 32 ? 2 : 4;
}

template <typename Int>
struct HeadTile {
  Int head;  // b * heads + h
  Int tile;
};

// Heads follow one another, so that CTAs which run together share K and V in L2; within a head the
// last query tile, the longest of a causal mask, comes first.
template <typename Int>
ATT_FN constexpr HeadTile<Int> tile_by_head(Int index, Int tiles) {
  const Int head = index / tiles;
  return {head, tiles - 1 - index % tiles};
}

// The longest of all heads first: where items are few, one that comes late is alone in the end.
template <typename Int>
ATT_FN constexpr HeadTile<Int> tile_by_length(Int index, Int tiles, Int heads) {
  return {index % heads, tiles - 1 - index / heads};
}

// ---- The same in groups of heads: items run through the tiles of a group before the next group
// starts, so that the group's K and V stay in L2.

// Heads of a group, and at least how many there are in the last one.
template <typename Int>
struct GroupSizes {
  Int size, last;
};

// K and V of a group's heads come from memory when it starts, and CTAs that all wait for them at
// once lose time: so a group is as many heads as `room_bytes` hold (kv_bytes: of one K/V head), but
// no more than `most` (0: no limit). Where items are uneven the last group is as many as fit, or
// more: the last items are then short ones, and CTAs end together.
template <typename Int>
ATT_FN constexpr GroupSizes<Int> group_sizes(Int batch, Int heads, Int kv_heads, long long kv_bytes,
                                             long long room_bytes, Int most, bool uneven) {
  const long long room = room_bytes / kv_bytes;
  const Int all_kv = batch * kv_heads;
  const Int held_kv = room < 1 ? 1 : room < all_kv ? static_cast<Int>(room) : all_kv;
  const Int held = held_kv * (heads / kv_heads);
  const Int size = most > 0 && most < held ? most : held;
  return {size, uneven ? held : size};
}

template <typename Int>
struct HeadGroups {
  Int heads;        // in all groups
  Int size;         // of a group but the last
  Int before_last;  // groups

  ATT_MEMBER constexpr Int size_of(Int group) const {
    return group < before_last ? size : heads - group * size;
  }
};

template <typename Int>
ATT_FN constexpr HeadGroups<Int> head_groups(Int heads, const GroupSizes<Int>& sizes) {
  return {heads, sizes.size, (heads - sizes.last) / sizes.size};
}

// Of a group all heads of one tile before the next tile, the last tile first where they are uneven.
template <typename Int>
ATT_FN constexpr HeadTile<Int> tile_by_group(Int index, Int tiles, const HeadGroups<Int>& groups,
                                             bool uneven) {
  const Int at = index / (groups.size * tiles);
  const Int group = at < groups.before_last ? at : groups.before_last;
  const Int first_head = group * groups.size;
  const Int size = groups.size_of(group);
  const Int rest = index - first_head * tiles;
  const Int tile = rest / size;
  return {first_head + rest - tile * size, uneven ? tiles - 1 - tile : tile};
}

// The same where the first tile is the longest, as with global tokens: it comes first, before the
// last one. Of the last group these would otherwise begin when all else is done.
template <typename Int>
ATT_FN constexpr Int with_first_tile_first(Int tile, Int tiles) {
  return tile == tiles - 1 ? Int{0} : tile + 1;
}

// ---- In which order CTAs of a backward pass take the tiles of all heads.

// Under a mask tiles are uneven. Taken head by head the long tiles of the last heads begin late,
// and all CTAs wait for them; tiles of all heads do not stay in L2. So heads are taken in groups of
// this many tiles, a wave or two, the long tiles of a group first. Causal, d 128, on an H200: 3 %
// at 4096 and 8192 keys, in order 5 %; d 64 level; heads of fewer than 16 tiles are 1 % faster one
// by one.
constexpr int kTilesOfGroup = 256, kLeastTilesOfHead = 16;

// Off a counter short heads come one by one as well, but for the last ones, whose long tiles come
// first, so that CTAs end together: causal, d 64, 1024 keys, on an H200 539 us without, 530 with.
// `most`: heads of a group at most. CTAs of head n wait for all items of head n - `most`, if they
// see to its sums, and these must be lower ones: 24 heads of 18 tiles as one group of 24, where
// that was 16 heads, waited for each other for ever.
template <typename Int>
ATT_FN constexpr HeadGroups<Int> groups_off_counter(Int heads, Int tiles, Int most) {
  const Int whole = kTilesOfGroup / tiles, fit = whole > 1 ? whole : 1;
  const Int last = heads < fit ? heads : fit;
  const Int size = tiles < kLeastTilesOfHead ? 1 : last;
  HeadGroups<Int> groups = head_groups(heads, GroupSizes<Int>{size, last});
  if (most < heads) {
    const Int least = tile_count(heads - most, size);
    if (groups.before_last < least) groups.before_last = least;
  }
  return groups;
}

// ---- Sums of dQ in global memory, to which the CTAs of a K/V head's key tiles add. They stay in
// L2, as only the heads under way have some: a head's last CTA and others that end meanwhile, or
// the CTAs of a later one, bring them to rows and free them.

template <typename Int>
struct SumHeads {
  Int slots;      // K/V heads that have sums at a time: head n those that head n - slots had
  Int behind;     // where CTAs of head n bring others' sums to rows, those of head n - behind
  Int converted;  // the first ones, by the main launch; the others by a launch of its own
};
// `wave`: items that are under way at a time, or, where they are uneven, may be; of heads with
// fewer than 32 tiles at most kWaveOfShortHeads.
constexpr int kWaveOfShortHeads = 256;
template <typename Int>
ATT_FN constexpr SumHeads<Int> sum_heads(Int kv_heads, Int kv_tiles, Int wave,
                                         bool all_have_sums = false) {
  const bool is_less = kv_tiles < 32 && wave > kWaveOfShortHeads;
  const Int behind = tile_count(is_less ? Int{kWaveOfShortHeads} : wave, kv_tiles) + 1;
  const Int slots = all_have_sums ? kv_heads : 2 * behind;
  return {slots < kv_heads ? slots : kv_heads, behind, behind < kv_heads ? kv_heads - behind : 0};
}

// Of which heads a launch in front makes what is known of the rows. CTAs of the others' key tiles
// come so many heads after those that make it for them on the way. A head's CTAs share out its
// rows, which takes each about as long as its own tiles do where there are four: with 8 on an H200,
// d 128, a pass was 2 % faster so. Under a mask CTAs end sooner: causal, 4 tiles a head were 3 %
// slower, 8 level, 32 1 % faster. Where all heads have sums only two warps make them: 16 tiles a
// head were 4 % slower, 32 2 % faster.
template <typename Int>
ATT_FN constexpr Int heads_with_rows(Int kv_heads, Int kv_tiles, const SumHeads<Int>& sums,
                                     bool uneven, bool all_have_sums = false) {
  return kv_tiles < (all_have_sums ? 32 : uneven ? 16 : 8) ? kv_heads : kv_heads - sums.converted;
}

// Tiles of groups of `size` heads, the first tile the first, where that one is much longer than the
// others: taken with the others of its head, those of the last heads would begin so late that all
// wait for them. So the first tiles of all heads come `early` heads before the others, or up to
// `size` - 1 fewer. (`early` is not less than `size`.)
template <typename Int>
ATT_FN constexpr HeadTile<Int> tile_with_early_first(Int index, Int tiles, Int heads, Int size,
                                                     Int early) {
  // Heads whose first tile comes with the other tiles of an earlier group.
  const Int later = early < heads ? tile_count(heads - early, size) * size : 0;
  const Int at_start = heads - later;
  if (index < at_start) return {index, 0};
  const Int rest = index - at_start;
  if (rest < later * tiles) {
    const Int first = rest / (size * tiles) * size;  // head of the group
    const Int in_group = rest - first * tiles;
    const Int tile = in_group / size, head = first + in_group - tile * size;
    return tile == 0 ? HeadTile<Int>{at_start + head, 0} : HeadTile<Int>{head, tile};
  }
  const auto [head, tile] = tile_by_group<Int>(rest - later * tiles, tiles - 1,
                                               head_groups<Int>(at_start, {size, 1}), false);
  return {later + head, tile + 1};
}
// Heads by which first tiles may be early: such a tile waits for the rows of its head, which CTAs
// of the head `behind` before make, and these must not come after it.
template <typename Int>
ATT_FN constexpr Int early_heads(Int size, Int behind) {
  return behind < 2 * size ? 0 : (behind / size - 1) * size;
}

// ---- Walks of key tiles, cut where key tiles are few: a CTA takes a part of the query tiles that
// one visits. What the parts come to is added up in the order of the parts.

// So many CTAs there are at most, unless there are more key tiles: the processors of an H200, each
// of which has room for one.
constexpr int kCtasOfWalks = 132;
// Query tiles that a part has at least. A CTA's beginning and end take as long as a few of them.
constexpr int kLeastWalk = 2;
// Where walks are uneven, so many CTAs for each processor, if parts then are no shorter than this:
// with one each, all would wait for the longest.
constexpr int kUnevenRounds = 2;
constexpr int kLeastUnevenWalk = 16;

// Parts of at least `least` query tiles, where all key tiles' come to no more than `ctas`.
template <typename Int>
ATT_FN constexpr Int walk_parts_within(Int items, Int tiles, int ctas, int least) {
  const Int fitting = ctas / items, most = tiles / least;
  const Int parts = fitting < most ? fitting : most;
  return parts < 1 ? 1 : parts;
}
// Of the walk of each of `items` key tiles, which visits `tiles` query tiles of all heads together.
template <typename Int>
ATT_FN constexpr Int walk_parts(Int items, Int tiles, bool uneven) {
  const Int parts = walk_parts_within(items, tiles, kCtasOfWalks, kLeastWalk);
  if (!uneven) return parts;
  const Int more = walk_parts_within(items, tiles, kUnevenRounds * kCtasOfWalks, kLeastUnevenWalk);
  return parts < more ? more : parts;
}

// Columns of a row of dK or dV that a thread adds up of all parts, and CTAs of so many threads that
// do so, where `rows` have `columns` of both together.
constexpr int kColumnsOfSum = 8;
template <typename Int>
ATT_FN constexpr Int ctas_of_sums(Int parts, Int rows, Int columns, Int threads) {
  return parts > 1 ? tile_count(rows * (columns / kColumnsOfSum), threads) : 0;
}
// Of packed sequences each of them takes so many rows of a key tile of the list's.
constexpr int kListedRowsOfSum = 16;
template <typename Int>
ATT_FN constexpr Int ctas_of_listed_sums(Int parts, Int tiles, Int tile) {
  return parts > 1 ? tiles * (tile / kListedRowsOfSum) : 0;
}

// ---- Query tiles that heads of one K/V head share, where the queries of a single head do not fill
// one (decoding). Tiles follow one another, then parts of a K/V head, then K/V heads.

template <typename Int>
struct PackedTiles {
  Int heads_per_item, head_parts, q_tiles;
  ATT_MEMBER constexpr Int per_kv_head() const { return head_parts * q_tiles; }
};

template <typename Int>
ATT_FN constexpr PackedTiles<Int> packed_tiles(Int heads, Int kv_heads, Int q_len, Int tile) {
  const Int group = heads / kv_heads;
  const Int fitting = tile / q_len;
  const Int together = fitting < 1 ? 1 : fitting > group ? group : fitting;
  return {together, tile_count(group, together), tile_count(q_len, tile)};
}

// ---- Query heads of one K/V head that an item takes abreast, a warpgroup each. Of the last set of
// a K/V head there may be fewer.

template <typename Int>
ATT_FN constexpr Int head_sets(Int heads, Int kv_heads, Int abreast) {
  return kv_heads * tile_count(heads / kv_heads, abreast);
}

template <typename Int>
ATT_FN constexpr Int first_head_of_set(Int set, Int heads, Int kv_heads, Int abreast) {
  const Int group = heads / kv_heads;
  const Int sets = tile_count(group, abreast);
  const Int kv_head = set / sets;
  return kv_head * group + (set - kv_head * sets) * abreast;
}

// ---- Pieces of an item's keys, a CTA each, whose results are merged.

// So many pieces a launch has at most, unless it has more items: several for each processor, and it
// bounds the results that wait to be merged.
constexpr int kMostPieces = 1024;

// Of an item, where a launch has so many and a plan wants `pieces`.
template <typename Int>
ATT_FN constexpr Int piece_count(Int items, Int pieces) {
  const Int most = items < kMostPieces ? kMostPieces / (items < 1 ? 1 : items) : 1;
  return pieces < most ? pieces : most;
}

// A piece of packed sequences has at least so many units of keys, where it is one of several.
constexpr int kLeastPieceUnits = 4;

// Units of keys that a piece of packed sequences has at most, where a K/V head's sequences have
// `all` together: so all are no more than half as many full ones as results have room for.
template <typename Int>
ATT_FN constexpr Int units_of_piece(Int all, Int kv_heads) {
  const Int room = kMostPieces / kv_heads / 2;
  const Int full = room < 1 ? 1 : room;
  return (all + full - 1) / full + kLeastPieceUnits - 1;
}
// Pieces of so many units, where a plan has at most `most` of a sequence.
template <typename Int>
ATT_FN constexpr Int pieces_of_units(Int units, Int of_piece, Int most) {
  const Int wanted = (units + of_piece - 1) / of_piece;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

// CTAs that take stretches of packed sequences' keys, at most (templates/tile/stretches.cuh): each
// may cut two items, and so leave two results.
constexpr int kMostStretches = kMostPieces / 2;
// Of their lengths, in units of keys: what an item takes beside its keys, the least, and the part
// of its length by which one grows at most to leave items whole.
constexpr int kItemUnits = 4;
constexpr int kLeastStretch = 2 * kItemUnits;
constexpr int kMostRounding = 16;

// Tiles of packed sequences that CTAs find for themselves, which a K/V head has at most, whatever
// the lengths: those of a single query of each sequence, and more of one with many. A sequence of
// q queries has at most group * q / (tile / 2) + 1 parts of heads in a tile.
template <typename Int>
ATT_FN constexpr Int packed_tile_count(Int all_queries, Int sequences, Int heads, Int kv_heads,
                                       Int tile) {
  const Int group = heads / kv_heads;
  // Queries of which a sequence needs so many to have more tiles than a single one.
  const Int more = group < tile ? tile / group + 1 : 2;
  return sequences * tile_count(group, tile) +
         (all_queries < more ? 0 : all_queries * group / (tile / 2));
}

// How long the list of pieces of packed sequences is that a K/V head has
// (templates/kernels/piece_items.cuh): whatever the lengths, no more items than this wait for a
// piece. A sequence of q queries has at most group * q / (tile / 2) + 1 parts of heads in a tile.
template <typename Int>
ATT_FN constexpr Int piece_item_count(Int all_queries, Int sequences, Int heads, Int kv_heads,
                                      Int tile) {
  const Int group = heads / kv_heads;
  return all_queries / (tile / 2) * group + group + sequences + kMostPieces / kv_heads;
}

// ---- Pieces of the keys of wide query tiles, which the tensor unit's kernels take.

// Rows of results that a launch has at most: three for each row that an H200's processors have
// under way at a time, two warpgroups each.
constexpr int kMostKeyRows = 3 * 132 * 128;
// Of an item, at most.
constexpr int kMostKeyPieces = 16;
// What a piece takes beside its key tiles, in tiles; packed sequences' have at least so many.
constexpr int kPieceTiles = 4;

// Of each of `items` items of `rows` rows, of which a plan wants `pieces`.
template <typename Int>
ATT_FN constexpr Int key_piece_count(Int items, Int rows, Int pieces) {
  const Int fitting = kMostKeyRows / rows / (items < 1 ? 1 : items);
  const Int most = fitting < 1 ? 1 : fitting;
  return pieces < most ? pieces : most;
}

// Whether packed sequences whose queries have room for `q_len` rows may be cut. Where they have
// more, items are many and fill the processors as they are, and results need no room.
ATT_FN constexpr bool may_cut_listed(long long heads, long long q_len) {
  return heads * q_len <= 4 * kMostKeyRows;
}
// Counters of pieces: one for the rows of each warpgroup.
constexpr int kKeyCounters = kMostKeyRows / 64;

// ---- Fixed pieces of a sequence's keys: where one ends depends on nothing but its number, so that
// what a row comes to does not depend on what else a launch has. The first kPiecesBeforeDoubling
// have kFixedPieceKeys; each half as many more double the keys before them.

constexpr int kFixedPieceKeys = 2048;
constexpr int kPiecesBeforeDoubling = 32;

ATT_FN constexpr long long fixed_piece_begin(int piece) {
  constexpr int kHalf = kPiecesBeforeDoubling / 2;
  if (piece < kPiecesBeforeDoubling) return static_cast<long long>(piece) * kFixedPieceKeys;
  const int octave = piece / kHalf - 2;
  return (static_cast<long long>(kHalf + piece % kHalf) * (2 * kFixedPieceKeys)) << octave;
}

// Of so many keys; that of key i is one less than of i + 1 keys.
template <typename Int>
ATT_FN constexpr int fixed_piece_count(Int keys) {
  constexpr int kHalf = kPiecesBeforeDoubling / 2;
  const long long last = static_cast<long long>(keys) - 1;
  if (last < 0) return 0;
  const long long units = last / kFixedPieceKeys;
  if (units < kPiecesBeforeDoubling) return static_cast<int>(units) + 1;
  int octave = 0;
  while (units >> octave >= 2 * kPiecesBeforeDoubling) ++octave;
  return kPiecesBeforeDoubling + kHalf * octave +
         static_cast<int>((units >> (octave + 1)) - kHalf) + 1;
}

// Results of fixed pieces that wait to be merged, at most; and items from which on there are enough
// of them without any.
constexpr int kMostFixedResults = 4096;
constexpr int kItemsThatFill = 256;

// Into how many pieces all items are dealt out: those that their keys have, or a single one, which
// then takes these one after the other and merges them as they come. The result is the same.
template <typename Int>
ATT_FN constexpr Int dealt_pieces(Int items, Int keys) {
  const Int pieces = fixed_piece_count(keys);
  const bool deals = items < kItemsThatFill && pieces > 1 && items * pieces <= kMostFixedResults;
  return deals ? pieces : 1;
}

// As piece_item_count.
template <typename Int>
ATT_FN constexpr Int fixed_piece_item_count(Int all_queries, Int sequences, Int heads, Int kv_heads,
                                            Int tile) {
  const Int group = heads / kv_heads;
  return all_queries / (tile / 2) * group + group + sequences + kMostFixedResults / kv_heads;
}

// ---- Tiles of packed sequences, of queries or of keys, as templates/tile/item_list.cuh lists
// them.

// How long the list is: whatever the lengths, there are no more tiles of so many rows.
template <typename Int>
ATT_FN constexpr Int sequence_item_count(Int all_rows, Int sequences, Int tile) {
  return all_rows / tile + sequences;
}
// A number below that of sequence `sequence`'s first tile, before whose rows `first` others lie;
// its others follow, and no other sequence has one of them.
template <typename Int>
ATT_FN constexpr Int first_sequence_tile(Int first, Int sequence, Int tile) {
  return first / tile + sequence;
}
constexpr int kItemThreads = 1024;  // of the one CTA that makes it

// Whether tiles of packed sequences that may be cut are so few that every CTA finds them all for
// itself, a lane each: then there is no list.
constexpr int kMostFound = 32;
ATT_FN constexpr bool finds_tiles(long long heads, long long q_len, int sequences, int tile) {
  return may_cut_listed(heads, q_len) &&
         sequence_item_count<long long>(q_len, sequences, tile) <= kMostFound;
}

// ---- Pairs of the block-range pre-pass (templates/kernels/block_ranges.cuh).

constexpr int kRangePairsOfCta = 4;  // one warp a pair
constexpr int kRunThreads = 1024;    // of a row whose runs are worked out
constexpr int kRangePairsOfCpuItem = 256;

}  // namespace att
