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

// Of longer lists no item is cut.
constexpr int kMostListed = 128;
// There is room for.
constexpr int kMostResults = kMostKeyRows / (kWarpgroups * kRows);
// Of what is compared, in tiles.
constexpr float kMostTime = 1 << 25;

// Of packed sequences: how items are cut, and what all come to.
struct ListedPieces {
  int length = 0;  // tiles of a piece, at most; 0: items are whole
  int count = 0;   // pieces of all items, of one head; where items were found for whole ones, too
  FoundItem found = {0, 0};  // where there is no list
};

ATT_FN SequenceItem listed_item(const PackedParams& p, int i) {
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  return i < capacity ? p.sequences.items[i] : SequenceItem{-1, 0};
}
ATT_FN int listed_tiles(const PackedParams& p, int i) {
  const SequenceItem item = listed_item(p, i);
  return item.sequence < 0 ? 0 : walked_tiles(p, sequence_of(p, item.sequence), item);
}

// Of a number that is not negative; a thousandth above a whole one it still is that.
ATT_FN float round_up(float x) { return static_cast<float>(static_cast<int>(x + 0.999f)); }

ATT_FN float pieces_of_tiles(float tiles, float length) {
  const float pieces = math_max(round_up(math_divide(tiles, length)), 1.0f);
  return tiles == 0.0f ? 0.0f : math_min(pieces, plan::kKeyPieces);
}
ATT_FN int pieces_of_tiles(int tiles, int length) {
  return static_cast<int>(pieces_of_tiles(static_cast<float>(tiles), static_cast<float>(length)));
}

// The whole warp calls it. The length for which the last CTA of `ctas` is done the soonest, where
// `heads` take every item: a lane works out one, from two rounds' share of a CTA to a quarter.
// `tiles`: of the lane's items.
template <int kOfLane>
ATT_FN ListedPieces choose_length(const int (&tiles)[kOfLane], int heads, int ctas) {
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
  const float share = static_cast<float>(total_of_lanes(all)) * of_cta;
  const int length =
      max_i32(static_cast<int>(share * math_exp2(1.0f - 3.0f / 31.0f * lane)) + 1, kPieceTiles);
  // Pieces longer than half a length, all of them, and what the short ones come to.
  float long_pieces = 0.0f, count = 0.0f, short_tiles = 0.0f, most = 0.0f, of_longest = 0.0f;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
#pragma unroll 1
    for (int other = 0; other < min_i32(items - 32 * i, 32); ++other) {
      const float of_item = static_cast<float>(shuffle_from(tiles[i], other));
      const float pieces = pieces_of_tiles(of_item, static_cast<float>(length));
      const bool is_long = 2.0f * of_item > static_cast<float>(length);
      count += pieces;
      long_pieces += is_long ? pieces : 0.0f;
      short_tiles += is_long ? 0.0f : of_item + kPieceTiles;
      most = math_max(most, round_up(math_divide(of_item, pieces)));
      of_longest = math_max(of_longest, pieces);
    }
  }
  // Whole items: the longest first.
  const float whole = math_max(static_cast<float>(longest + kPieceTiles),
                               share + round_up(static_cast<float>(items) * of_cta) * kPieceTiles);
  // Long ones come in rounds, and short ones where the last round leaves room for them.
  const float rounds = round_up(long_pieces * of_cta), round = most + kPieceTiles;
  const float room = (rounds - long_pieces * of_cta) * round;
  const float last = rounds * round + math_max(short_tiles * of_cta - room, 0.0f);
  const bool fits = count * static_cast<float>(heads) <= kMostResults;
  const float time = fits ? math_min(last + 0.5f * of_longest, kMostTime) : infinity();
  // Bits of numbers that are not negative go by their size.
  const unsigned least = least_of_lanes(__builtin_bit_cast(unsigned, time));
  if (least >= __builtin_bit_cast(unsigned, math_min(whole, kMostTime))) return {0, items};
  const unsigned best = ballot(__builtin_bit_cast(unsigned, time) == least);
  const int chosen = highest_bit(best & (0 - best));
  return {shuffle_from(length, chosen), shuffle_from(static_cast<int>(count), chosen)};
}

ATT_FN ListedPieces choose_pieces(const PackedParams& p, int heads, int ctas) {
  if (finds_items(p)) {
    const FoundItem found = find_item(p);
    const int tiles[1] = {found.tiles};
    ListedPieces pieces = choose_length(tiles, heads, ctas);
    pieces.found = found;
    // Of one round nobody is the first.
    if (pieces.count * heads > ctas)
      pieces.found = longest_first(found, bit_count(ballot(found.tiles > 0)));
    return pieces;
  }
  if (!may_cut_listed(p.heads, p.q_len)) return {};
  constexpr int kOfLane = kMostListed / 32;
  int tiles[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) tiles[i] = listed_tiles(p, thread_index() % 32 + 32 * i);
  if (listed_item(p, kMostListed).sequence >= 0) return {};
  return choose_length(tiles, heads, ctas);
}

struct ListedPiece {
  SequenceItem item;
  int head;  // which of `heads`
  KeyPiece own;
};

// Number `number` of the pieces of 32 items, of one in each lane, of all heads; no item where it is
// beyond those. `before`: pieces of a head that lie in front of them; then, with them.
ATT_FN ListedPiece piece_of_lanes(int number, int tiles, const ListedPieces& pieces, int heads,
                                  int& before, int& lane) {
  const int count = pieces_of_tiles(tiles, pieces.length);
  const int up_to = before + sum_up_to_lane(count);
  const unsigned behind = ballot(up_to * heads > number);
  before = shuffle_from(up_to, 31);
  lane = behind == 0 ? -1 : highest_bit(behind & (0 - behind));
  const int own_count = shuffle_from(count, lane);
  const int own_first = shuffle_from(up_to, lane) - own_count;
  const int rest = number - own_first * heads;
  const int piece = rest / heads, head = rest - piece * heads;
  return {
      {-1, 0},
      head,
      {piece, own_count, min_i32(own_first * heads + head * own_count, kMostResults - own_count)}};
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
  if (pieces.length == 0) {
    const int i = number / heads;
    return {p.sequences.items[i], number - i * heads, {0, 1, 0}};
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
