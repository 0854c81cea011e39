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
  int found = -1;  // the lane's item, where there is no list
};

ATT_FN SequenceItem listed_item(const PackedParams& p, const ListedPieces& pieces, int i) {
  if (finds_items(p)) return found_item(i < kMostFound ? pieces.found : -1);
  const int capacity = sequence_item_count(p.q_len, p.batch, kItemQueries);
  return i < capacity ? p.sequences.items[i] : SequenceItem{-1, 0};
}

// Of head 0, as the list is made; 0: of no sequence. An item without keys is done, too.
ATT_FN int walked_tiles(const PackedParams& p, const SequenceItem& item) {
  if (item.sequence < 0) return 0;
  const Sequence sequence = sequence_of(p, item.sequence);
  if (sequence.kv_len == 0) return 1;
  KvBounds bounds{0, sequence.kv_len};
  if constexpr (spec::kHasMask) {
    const int first = item.tile * kItemQueries;
    bounds = kv_bounds(context_of(p, sequence, item.sequence, 0, 0), first,
                       min_i32(first + kItemQueries, sequence.q_len));
  }
  if (bounds.begin >= bounds.end) return 1;
  return tile_count(bounds.end, kTileKv) - bounds.begin / kTileKv;
}

ATT_FN int pieces_of_tiles(int tiles, int length) {
  return min_i32(tile_count(tiles, length), plan::kKeyPieces);
}

ATT_FN int sum_of_lanes(int value) { return shuffle_from(sum_up_to_lane(value), 31); }

// For numbers that are not negative.
ATT_FN float round_up(float x) { return static_cast<float>(static_cast<int>(x + 0.999f)); }

// The whole warp calls it. The length for which the last CTA of `ctas` is done the soonest, where
// `heads` take every item: a lane works out one, from two rounds' share of a CTA to a quarter.
ATT_FN ListedPieces choose_pieces(const PackedParams& p, int heads, int ctas) {
  if (!may_cut_listed(p.heads, p.q_len)) return {};
  constexpr int kOfLane = kMostListed / 32;
  const int lane = thread_index() % 32;
  ListedPieces chosen;
  if (finds_items(p)) chosen.found = find_item(p);
  int tiles[kOfLane];
  int all = 0, items = 0, longest = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    tiles[i] = walked_tiles(p, listed_item(p, chosen, lane + 32 * i));
    all += tiles[i];
    items += tiles[i] > 0 ? 1 : 0;
    longest = max_i32(longest, tiles[i]);
  }
  if (listed_item(p, chosen, kMostListed).sequence >= 0) return {};
  items = sum_of_lanes(items);
  longest = static_cast<int>(most_of_lanes(static_cast<unsigned>(longest)));
  const float share =
      static_cast<float>(sum_of_lanes(all)) * static_cast<float>(heads) / static_cast<float>(ctas);
  const int length =
      max_i32(static_cast<int>(share * math_exp2(1.0f - 3.0f / 31.0f * lane)) + 1, kPieceTiles);
  const float inverse = math_divide(1.0f, static_cast<float>(length));
  // Pieces longer than half a length, all of them, and what the short ones come to.
  float long_pieces = 0.0f, count = 0.0f, short_tiles = 0.0f, most = 0.0f, of_longest = 0.0f;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
#pragma unroll 4
    for (int other = 0; other < min_i32(items - 32 * i, 32); ++other) {
      const float of_item = static_cast<float>(shuffle_from(tiles[i], other));
      const float pieces = math_min(round_up(of_item * inverse), plan::kKeyPieces);
      const bool is_long = 2.0f * of_item > static_cast<float>(length);
      count += pieces;
      long_pieces += is_long ? pieces : 0.0f;
      short_tiles += is_long ? 0.0f : of_item + kPieceTiles;
      most = math_max(most, round_up(math_divide(of_item, pieces)));
      of_longest = math_max(of_longest, pieces);
    }
  }
  // Whole items: the longest first.
  const float whole =
      math_max(static_cast<float>(longest + kPieceTiles),
               share + static_cast<float>(tile_count(items * heads, ctas) * kPieceTiles));
  // Long ones come in rounds, and short ones where the last round leaves room for them.
  const float of_cta = math_divide(static_cast<float>(heads), static_cast<float>(ctas));
  const float rounds = round_up(long_pieces * of_cta), round = most + kPieceTiles;
  const float room = (rounds - long_pieces * of_cta) * round;
  const bool fits = count * static_cast<float>(heads) <= kMostResults;
  const float last = rounds * round + math_max(short_tiles * of_cta - room, 0.0f);
  const float time = fits ? math_min(last + 0.5f * of_longest, kMostTime) : kMostTime;
  // Bits of numbers that are not negative go by their size.
  const unsigned least = least_of_lanes(__builtin_bit_cast(unsigned, time));
  const unsigned best = ballot(__builtin_bit_cast(unsigned, time) == least);
  if (least < __builtin_bit_cast(unsigned, whole)) {
    chosen.length = shuffle_from(length, highest_bit(best & (0 - best)));
    chosen.count = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) chosen.count += pieces_of_tiles(tiles[i], chosen.length);
    chosen.count = sum_of_lanes(chosen.count);
  }
  if (chosen.length == 0 || chosen.count * heads > kMostResults) {
    chosen.length = 0;
    chosen.count = items;
  }
  if (finds_items(p) && chosen.count * heads > ctas)
    chosen.found = longest_first(chosen.found, tiles[0], items);
  return chosen;
}

struct ListedPiece {
  SequenceItem item;
  int head;  // which of `heads`
  KeyPiece own;
};

// The same for all lanes.
ATT_FN SequenceItem item_of_list(const PackedParams& p, const ListedPieces& pieces, int i) {
  if (finds_items(p)) return found_item(shuffle_from(pieces.found, i));
  return p.sequences.items[i];
}

// Number `number` of the pieces of all heads, of which there are more. The whole warp calls it.
ATT_FN ListedPiece listed_piece(const PackedParams& p, const ListedPieces& pieces, int heads,
                                int number) {
  if (pieces.length == 0) {
    const int i = number / heads;
    return {item_of_list(p, pieces, i), number - i * heads, {0, 1, 0}};
  }
  int before = 0;  // pieces of the entries in front
#pragma unroll 1
  for (int first = 0; first < kMostListed; first += 32) {
    const SequenceItem item = listed_item(p, pieces, first + thread_index() % 32);
    const int count = pieces_of_tiles(walked_tiles(p, item), pieces.length);
    const int up_to = before + sum_up_to_lane(count);
    const unsigned behind = ballot(up_to * heads > number);
    if (behind == 0) {
      before = shuffle_from(up_to, 31);
      continue;
    }
    const int lane = highest_bit(behind & (0 - behind));
    const int own_count = shuffle_from(count, lane);
    const int own_first = shuffle_from(up_to, lane) - own_count;
    const int rest = number - own_first * heads;
    const int piece = rest / heads, head = rest - piece * heads;
    return {{shuffle_from(item.sequence, lane), shuffle_from(item.tile, lane)},
            head,
            {piece, own_count,
             min_i32(own_first * heads + head * own_count, kMostResults - own_count)}};
  }
  // Lengths became shorter meanwhile, which they must not: any item, and nothing outside.
  return {item_of_list(p, pieces, 0), 0, {0, 1, 0}};
}

}  // namespace sm90
}  // namespace att
