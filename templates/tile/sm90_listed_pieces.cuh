// How packed sequences' items are cut in pieces, whose lengths only the device knows. There are few
// items where cutting pays, so a warp of every CTA goes through them for itself, those of a list or
// those that it found: pieces are numbered item by item, of an item first those of all heads that
// have the same keys.
#pragma once

#include "templates/ptx/math.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/lane_sums.cuh"
#include "templates/tile/sm90_found_items.cuh"
#include "templates/tile/sm90_key_pieces.cuh"

namespace att {
namespace sm90 {

// Of longer lists the items behind these, which are the shortest, are not cut.
constexpr int kMostListed = 128;
// There is room for.
constexpr int kMostResults = kMostKeyRows / (kWarpgroups * kRows);
// Of what is compared, in tiles.
constexpr float kMostTime = 1 << 25;

// Of packed sequences: how items are cut, and what all come to.
struct ListedPieces {
  int length = 0;  // tiles of a piece, at most; 0: items are whole
  // Pieces of all items but a list's behind kMostListed, of one head; where items were found for
  // whole ones, too.
  int count = 0;
  FoundItem found = {0, 0};  // where there is no list
};

// Without branches, so that what a lane asks of several items is under way at once.
ATT_FN SequenceItem listed_item(const PackedParams& p, int i) {
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  const SequenceItem item = p.sequences.items[min_i32(i, capacity - 1)];
  return {i < capacity ? item.sequence : -1, item.tile};
}
ATT_FN int listed_tiles(const PackedParams& p, const SequenceItem& item) {
  const int tiles = walked_tiles(p, sequence_of(p, max_i32(item.sequence, 0)), item);
  return item.sequence < 0 ? 0 : tiles;
}
ATT_FN int listed_tiles(const PackedParams& p, int i) { return listed_tiles(p, listed_item(p, i)); }

// Of a number that is not negative; a thousandth above a whole one it still is that.
ATT_FN float round_up(float x) {
  constexpr float kWhole = 1 << 23;  // from there on all numbers are
  return x + 0.499f + kWhole - kWhole;
}

// Of an item that has tiles; `per_tile` is one over a piece's.
ATT_FN float pieces_of_tiles(float tiles, float per_tile) {
  return math_max(math_min(round_up(tiles * per_tile), plan::kKeyPieces), 1.0f);
}
ATT_FN float pieces_per_tile(int length) { return math_reciprocal(static_cast<float>(length)); }
ATT_FN int pieces_of_tiles(int tiles, int length) {
  if (tiles == 0) return 0;
  return static_cast<int>(pieces_of_tiles(static_cast<float>(tiles), pieces_per_tile(length)));
}

// The most tiles of those that a list takes for alike (templates/tile/item_list.cuh): in which
// order these come is another at every launch, which must not be seen in what follows from a list.
ATT_FN int most_alike(int tiles) {
  if (tiles < 16) return tiles;
  const int shift = highest_bit(static_cast<unsigned>(tiles)) - 3;
  return (((tiles >> shift) + 1) << shift) - 1;
}

// Of items behind kMostListed, which are not cut: about how many there are, and their tiles. Nor is
// one that is as long as `longest`, the first of them.
struct WholeItems {
  int items = 0, tiles = 0, longest = 0;
};

// By a few of them, as a list's items come by their length. The whole warp calls it.
ATT_FN WholeItems items_behind(const PackedParams& p) {
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  const int step = (capacity - kMostListed + 31) / 32;
  if (step <= 0) return {};
  const int tiles = most_alike(listed_tiles(p, kMostListed + thread_index() % 32 * step));
  return {bit_count(ballot(tiles > 0)) * step, total_of_lanes(tiles) * step,
          shuffle_from(tiles, 0)};
}

// The whole warp calls it. The length for which the last CTA of `ctas` is done the soonest, where
// `heads` take every item: a lane works out one, from two rounds' share of a CTA to a quarter.
// `tiles`: of the lane's items.
template <int kOfLane>
ATT_FN ListedPieces choose_length(const int (&tiles)[kOfLane], const WholeItems& behind, int heads,
                                  int ctas) {
  const int lane = thread_index() % 32;
  int all = 0, items = 0, longest = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    all += tiles[i];
    items += tiles[i] > 0 ? 1 : 0;
    longest = max_i32(longest, tiles[i]);
  }
  items = total_of_lanes(items);
  longest = static_cast<int>(most_of_lanes(static_cast<unsigned>(longest)));
  const float of_cta = math_divide(static_cast<float>(heads), static_cast<float>(ctas));
  const float share = static_cast<float>(total_of_lanes(all) + behind.tiles) * of_cta;
  // Whole items: the longest first. Pieces must gain some of that, for what they leave is read
  // again.
  const float all_items = static_cast<float>(items + behind.items) * of_cta;
  const float whole = math_max(static_cast<float>(longest + kPieceTiles),
                               share + round_up(all_items) * kPieceTiles);
  const float wanted = math_min(0.97f * whole, kMostTime);
  if (share + all_items * kPieceTiles >= wanted) return {0, items};
  const int length = max_i32(static_cast<int>(share * math_exp2(1.0f - 3.0f / 31.0f * lane)) + 1,
                             max_i32(kPieceTiles, behind.longest));
  const float per_tile = pieces_per_tile(length), half = 0.5f * static_cast<float>(length);
  // Pieces longer than half a length, all of them, and what the short ones come to.
  float long_pieces = 0.0f, count = 0.0f, most = 0.0f;
  float short_tiles = static_cast<float>(behind.tiles + behind.items * kPieceTiles);
  // Two at once, of which none waits for the other's chain of results. Those that are not there
  // count as a short one without tiles. One loop, as its instructions come from memory.
  constexpr int kAtOnce = 2;
#pragma unroll 1
  for (int first = 0; first < items; first += kAtOnce) {
    int own = tiles[0];
#pragma unroll
    for (int i = 1; i < kOfLane; ++i) own = first < 32 * i ? own : tiles[i];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const float of_item = static_cast<float>(shuffle_from(own, first + k));
      const float pieces = pieces_of_tiles(of_item, per_tile);
      const bool is_long = of_item > half;
      count += pieces;
      long_pieces += is_long ? pieces : 0.0f;
      short_tiles += is_long ? 0.0f : of_item + kPieceTiles;
      most = math_max(most, math_divide(of_item, pieces));
    }
  }
  const float absent = static_cast<float>(items & (kAtOnce - 1));
  count -= absent;
  short_tiles -= absent * kPieceTiles;
  // Long ones come in rounds, and short ones where the last round leaves room for them.
  const float rounds = round_up(long_pieces * of_cta), round = round_up(most) + kPieceTiles;
  const float room = (rounds - long_pieces * of_cta) * round;
  const float last = rounds * round + math_max(short_tiles * of_cta - room, 0.0f);
  // Items that are cut leave results: each has no more than two for each piece beyond its first.
  const float cuts = count - static_cast<float>(items);
  const float results = math_min(count, 2.0f * cuts) * static_cast<float>(heads);
  const bool fits = cuts > 0.0f && results <= kMostResults;
  const float of_longest = pieces_of_tiles(static_cast<float>(longest), per_tile);
  const float time = fits ? math_min(last + 0.5f * of_longest, kMostTime) : infinity();
  // Bits of numbers that are not negative go by their size.
  const unsigned least = least_of_lanes(__builtin_bit_cast(unsigned, time));
  if (least >= __builtin_bit_cast(unsigned, wanted)) return {0, items};
  const unsigned best = ballot(__builtin_bit_cast(unsigned, time) == least);
  const int chosen = highest_bit(best & (0 - best));
  return {shuffle_from(length, chosen), shuffle_from(static_cast<int>(count), chosen)};
}

ATT_FN ListedPieces choose_pieces(const PackedParams& p, int heads, int ctas) {
  if (finds_items(p)) {
    const FoundItem found = find_item(p);
    const int tiles[1] = {found.tiles};
    ListedPieces pieces = choose_length(tiles, {}, heads, ctas);
    pieces.found = found;
    // Of one round nobody is the first.
    if (pieces.count * heads > ctas)
      pieces.found = longest_first(found, bit_count(ballot(found.tiles > 0)));
    return pieces;
  }
  if (!may_cut_listed(p.heads, p.q_len)) return {};
  constexpr int kOfLane = kMostListed / 32;
  SequenceItem items[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) items[i] = listed_item(p, thread_index() % 32 + 32 * i);
  const WholeItems behind = items_behind(p);
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  int tiles[kOfLane] = {};
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    if (32 * i < capacity) tiles[i] = listed_tiles(p, items[i]);
  }
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) tiles[i] = tiles[i] > 0 ? max_i32(tiles[i], behind.longest) : 0;
  return choose_length(tiles, behind, heads, ctas);
}

struct ListedPiece {
  SequenceItem item;
  int head;  // which of `heads`
  KeyPiece own;
};

// Numbers of pieces, and above them of those that leave a result: of items that are cut.
constexpr int kCountBits = 16;
static_assert(kMostListed * kMostKeyPieces < 1 << (31 - kCountBits));
ATT_FN int results_of(int pieces) { return pieces > 1 ? pieces : 0; }
ATT_FN int count_of(int numbers) { return numbers & ((1 << kCountBits) - 1); }

// Number `number` of the pieces of 32 items, of one in each lane, of all heads; no item where it is
// beyond those. `before`: both numbers of a head's pieces in front of them; then, with them.
ATT_FN ListedPiece piece_of_lanes(int number, int tiles, const ListedPieces& pieces, int heads,
                                  int& before, int& lane) {
  const int count = pieces_of_tiles(tiles, pieces.length);
  const int up_to = before + sum_up_to_lane(count | results_of(count) << kCountBits);
  const unsigned behind = ballot(count_of(up_to) * heads > number);
  before = shuffle_from(up_to, 31);
  lane = behind == 0 ? -1 : highest_bit(behind & (0 - behind));
  const int own_count = shuffle_from(count, lane), own_up_to = shuffle_from(up_to, lane);
  const int rest = number - (count_of(own_up_to) - own_count) * heads;
  const int piece = rest / heads, head = rest - piece * heads;
  const int first_result = (own_up_to >> kCountBits) - results_of(own_count);
  const int result = first_result * heads + head * own_count;
  return {{-1, 0}, head, {piece, own_count, min_i32(result, kMostResults - own_count)}};
}

// Of a list: whether number `number` of all pieces is an item that no length was chosen for, and
// which number it would have if no item were cut.
ATT_FN bool is_whole_listed(const ListedPieces& pieces, int heads, int number) {
  return pieces.length == 0 || number >= pieces.count * heads;
}
ATT_FN int number_in_list(const ListedPieces& pieces, int heads, int number) {
  return pieces.length == 0 ? number : number + (kMostListed - pieces.count) * heads;
}

// Number `number` of the pieces of all heads, of which there are more. The whole warp calls it.
ATT_FN ListedPiece listed_piece(const PackedParams& p, const ListedPieces& pieces, int heads,
                                int number) {
  int before = 0, lane;
  if (finds_items(p)) {
    ListedPiece of = {{0, 0}, 0, {0, 1, 0}};
    if (pieces.length > 0) {
      of = piece_of_lanes(number, pieces.found.tiles, pieces, heads, before, lane);
    } else {
      lane = number / heads;
      of.head = number - lane * heads;
    }
    of.item = item_of_word(shuffle_from(pieces.found.word, lane));
    return of;
  }
  if (is_whole_listed(pieces, heads, number)) {
    const int of_all = number_in_list(pieces, heads, number), i = of_all / heads;
    return {p.sequences.items[i], of_all - i * heads, {0, 1, 0}};
  }
#pragma unroll 1
  for (int first = 0; first < kMostListed; first += 32) {
    const int i = first + thread_index() % 32;
    ListedPiece of = piece_of_lanes(number, listed_tiles(p, i), pieces, heads, before, lane);
    if (lane < 0) continue;
    of.item = p.sequences.items[first + lane];
    return of;
  }
  // Lengths became shorter meanwhile, which they must not: any item, and nothing outside.
  return {p.sequences.items[0], 0, {0, 1, 0}};
}

}  // namespace sm90
}  // namespace att
