// Every item is dealt out once, in the order that is promised.
#include "templates/work_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "templates/turn_order.h"

namespace att {
namespace {

TEST(WorkItems, TilesOfAHeadComeLastFirst) {
  const int tiles = tile_count(100, 32);
  ASSERT_EQ(tiles, 4);
  std::set<std::pair<int, int>> seen;
  for (int item = 0; item < 3 * tiles; ++item) {
    const auto [head, tile] = tile_by_head(item, tiles);
    EXPECT_EQ(head, item / tiles);
    EXPECT_EQ(tile, tiles - 1 - item % tiles);
    seen.insert({head, tile});
  }
  EXPECT_EQ(seen.size(), 12u);
}

TEST(WorkItems, GroupsTakeWhatFitsAndAreCapped) {
  // Room for three K/V heads of 100 bytes, four query heads each.
  const auto sizes = group_sizes<long long>(2, 16, 4, 100, 350, 0, false);
  EXPECT_EQ(sizes.size, 12);
  EXPECT_EQ(sizes.last, 12);
  const auto capped = group_sizes<long long>(2, 16, 4, 100, 350, 5, true);
  EXPECT_EQ(capped.size, 5);
  EXPECT_EQ(capped.last, 12);
  EXPECT_EQ(group_sizes<long long>(2, 16, 4, 100, 50, 0, true).size, 4);        // one at least
  EXPECT_EQ(group_sizes<long long>(2, 16, 4, 100, 1 << 20, 0, true).size, 32);  // all
}

TEST(WorkItems, AFirstTileComesBeforeTheLastOne) {
  for (const int tiles : {1, 2, 5}) {
    std::vector<int> order;
    for (int at = tiles - 1; at >= 0; --at) order.push_back(with_first_tile_first(at, tiles));
    std::vector<int> expected = {0};
    for (int tile = tiles - 1; tile > 0; --tile) expected.push_back(tile);
    EXPECT_EQ(order, expected);
  }
}

TEST(WorkItems, GroupsOfHeadsFollowOneAnotherTileByTile) {
  for (const bool uneven : {false, true}) {
    for (const int most : {0, 1, 3, 5, 8}) {
      for (const int heads : {1, 2, 7, 8}) {
        for (const int tiles : {1, 2, 5}) {
          const auto groups =
              head_groups(heads, group_sizes(1, heads, heads, 100, 400, most, uneven));
          // The order written out.
          int item = 0;
          for (int group = 0; group <= groups.before_last; ++group) {
            for (int step = 0; step < tiles; ++step) {
              for (int i = 0; i < groups.size_of(group); ++i, ++item) {
                const auto at = tile_by_group(item, tiles, groups, uneven);
                EXPECT_EQ(at.head, group * groups.size + i);
                EXPECT_EQ(at.tile, uneven ? tiles - 1 - step : step);
              }
            }
          }
          EXPECT_EQ(item, heads * tiles);
        }
      }
    }
  }
}

// Of the last set of a K/V head there may be fewer.
TEST(WorkItems, SetsOfHeadsAreOfOneKvHead) {
  EXPECT_EQ(head_sets(32, 8, 1), 32);
  EXPECT_EQ(head_sets(32, 8, 2), 16);
  EXPECT_EQ(head_sets(32, 8, 3), 16);
  EXPECT_EQ(head_sets(7, 7, 3), 7);
  EXPECT_EQ(first_head_of_set(3, 32, 8, 3), 7);  // K/V head 1 has heads 4 to 7
  std::set<int> firsts;
  for (int set = 0; set < head_sets(40, 8, 2); ++set) {
    const int head = first_head_of_set(set, 40, 8, 2);
    EXPECT_EQ(head % 5 % 2, 0);
    EXPECT_TRUE(firsts.insert(head).second);
    EXPECT_LT(head, 40);
  }
}

TEST(WorkItems, HeadsArePackedWhereOneDoesNotFillATile) {
  const auto decode = packed_tiles(32, 4, 1, 6);
  EXPECT_EQ(decode.heads_per_item, 6);
  EXPECT_EQ(decode.head_parts, 2);
  EXPECT_EQ(decode.per_kv_head(), 2);
  const auto group = packed_tiles(32, 4, 1, 96);
  EXPECT_EQ(group.heads_per_item, 8);  // no more than share a K/V head
  const auto prefill = packed_tiles(32, 4, 1000, 96);
  EXPECT_EQ(prefill.heads_per_item, 1);
  EXPECT_EQ(prefill.per_kv_head(), 8 * 11);
}

// CTAs start in the order of their numbers, and one of head n waits until the head that had its
// sums before is done with them, and until its rows are made. Nobody waits for ever: the main
// launch itself sees to these heads, and they are of groups before that of head n.
TEST(WorkItems, HeadsWaitForSumsAndRowsOfEarlierGroupsAlone) {
  for (const bool uneven : {false, true}) {
    for (const int wave : {1, 132, kTilesOfGroup, 2 * kTilesOfGroup}) {
      for (const int tiles : {1, 2, 5, 8, 15, 16, 31, 32, 33, 64, 128, 600}) {
        for (const int heads : {1, 2, 7, 32, 64, 300}) {
          const SumHeads<int> sums = sum_heads(heads, tiles, wave);
          ASSERT_GE(sums.slots, 1);
          ASSERT_LE(sums.slots, heads);
          ASSERT_EQ(sums.converted, std::max(heads - sums.behind, 0));
          const int with_rows = heads_with_rows(heads, tiles, sums, uneven);
          ASSERT_GE(with_rows, 1);
          const bool is_grouped = wave >= kTilesOfGroup && tiles >= 16;
          const int group = is_grouped ? std::max(1, kTilesOfGroup / tiles) : 1;
          for (int head = 0; head < heads; ++head) {
            if (head >= sums.slots) {
              ASSERT_LT(head - sums.slots, sums.converted);
              ASSERT_LT((head - sums.slots) / group, head / group);
            }
            if (head >= with_rows) {
              ASSERT_LT((head - with_rows) / group, head / group);
            }
          }
        }
      }
    }
  }
}

// Off a counter a CTA of a head may hold its next item back until all of an earlier head is done,
// whose sums it brings to rows, and that may be an item of that head.
TEST(WorkItems, ItemsOffTheCounterWaitForLowerItemsAlone) {
  for (const int wave : {kTilesOfGroup, 4 * kTilesOfGroup}) {
    for (const int tiles : {1, 2, 5, 8, 15, 16, 18, 24, 31, 32, 33, 64, 128, 300}) {
      for (int heads = 1; heads < 100; ++heads) {
        const SumHeads<int> sums = sum_heads(heads, tiles, wave);
        const HeadGroups<int> groups = groups_off_counter(heads, tiles, sums.behind);
        std::vector<int> first(heads, -1), last(heads, -1), count(heads, 0);
        for (int i = 0; i < heads * tiles; ++i) {
          const auto item = tile_by_group(i, tiles, groups, false);
          ASSERT_LT(item.head, heads);
          ASSERT_LT(item.tile, tiles);
          if (first[item.head] < 0) first[item.head] = i;
          last[item.head] = i;
          ++count[item.head];
        }
        for (int head = 0; head < heads; ++head) {
          ASSERT_EQ(count[head], tiles);
          if (head >= sums.behind) {
            ASSERT_LT(last[head - sums.behind], first[head]) << heads << " heads of " << tiles;
          }
        }
      }
    }
  }
}

// CTAs that take turns wait for those of their head that come before in the order, and for all of
// the head that had their sums: all of which have started before.
TEST(WorkItems, TurnsWaitForEarlierItemsAlone) {
  for (const bool has_mask : {false, true}) {
    for (const int group : {256, 512}) {
      for (const bool all_have_sums : {false, true}) {
        for (const int tiles : {1, 2, 5, 8, 31, 32, 33, 128, 600}) {
          for (const int heads : {1, 2, 3, 7, 32, 65, 300}) {
            const int slots = sum_heads(heads, tiles, group, all_have_sums).slots;
            const auto order = turn_order(heads, tiles, group, slots, has_mask);
            std::vector<int> next(heads, 0);
            for (int i = 0; i < heads * tiles; ++i) {
              const auto [head, tile] = order.item(i);
              ASSERT_TRUE(head >= 0 && head < heads);
              ASSERT_EQ(order.turn_of_tile(tile, order.is_turned_round(head)), next[head]++);
              if (head >= slots) {
                ASSERT_EQ(next[head - slots], tiles) << heads;
              }
            }
          }
        }
      }
    }
  }
}

// The same where first tiles are early, item by item.
TEST(WorkItems, EarlyFirstTilesWaitForEarlierItemsAlone) {
  for (const int tiles : {32, 33, 64, 100, 256, 600}) {
    for (const int heads : {1, 2, 7, 15, 16, 17, 32, 64, 301}) {
      const SumHeads<int> sums = sum_heads(heads, tiles, 4 * kTilesOfGroup);
      const int with_rows = heads_with_rows(heads, tiles, sums, true);
      const int size = std::max(1, kTilesOfGroup / tiles);
      const int early = early_heads(size, sums.behind);
      ASSERT_GE(early, tiles > kTilesOfGroup ? 1 : 2 * size);
      std::vector<int> last(heads, -1);  // item of each head
      std::set<std::pair<int, int>> seen;
      std::vector<HeadTile<int>> items;
      for (int i = 0; i < heads * tiles; ++i) {
        const auto item = tile_with_early_first(i, tiles, heads, size, early);
        items.push_back(item);
        ASSERT_TRUE(seen.insert({item.head, item.tile}).second) << i;
        ASSERT_LT(item.head, heads);
        ASSERT_LT(item.tile, tiles);
        last[item.head] = i;
      }
      for (int i = 0; i < heads * tiles; ++i) {
        const int head = items[i].head;
        if (head >= sums.slots) {
          ASSERT_LT(last[head - sums.slots], i);
        }
        if (head >= with_rows) {
          ASSERT_LT(last[head - with_rows], i);
        }
        // Of heads that all begin at once the long tiles come before all others.
        if (heads <= early) {
          ASSERT_EQ(items[i].tile == 0, i < heads);
        }
      }
    }
  }
}

// One long item holds its head's sums while those of many later heads are done.
TEST(WorkItems, LongHeadsMayHaveMoreSums) {
  EXPECT_EQ(sum_heads(100, 64, 512).slots, 18);
  EXPECT_EQ(sum_heads(100, 64, 256).slots, 10);
  EXPECT_EQ(sum_heads(100, 31, 512).slots, sum_heads(100, 31, 256).slots);
}

// Whatever the number of keys, each piece ends where the next begins, and no launch has many.
TEST(WorkItems, FixedPiecesFollowOneAnother) {
  EXPECT_EQ(fixed_piece_begin(0), 0);
  for (int piece = 0; piece < 200; ++piece) {
    const long long begin = fixed_piece_begin(piece), end = fixed_piece_begin(piece + 1);
    ASSERT_LT(begin, end);
    EXPECT_EQ(begin % kFixedPieceKeys, 0);
    EXPECT_EQ(fixed_piece_count(begin), piece);
    EXPECT_EQ(fixed_piece_count(begin + 1), piece + 1);
    EXPECT_EQ(fixed_piece_count(end), piece + 1);
    // What a long sequence has is dealt out evenly.
    EXPECT_LE(end - begin, std::max<long long>(kFixedPieceKeys, begin / 16 + kFixedPieceKeys));
  }
  EXPECT_EQ(fixed_piece_count(0), 0);
  EXPECT_EQ(fixed_piece_count(131072), 48);
  EXPECT_EQ(fixed_piece_count(1 << 20), 96);
}

TEST(WorkItems, FixedPiecesHaveACtaEachWhereItemsAreFewAndResultsHaveRoom) {
  EXPECT_EQ(dealt_pieces(8, 131072), 48);
  EXPECT_EQ(dealt_pieces(8, 2048), 1);
  EXPECT_EQ(dealt_pieces(kItemsThatFill, 131072), 1);
  EXPECT_EQ(dealt_pieces(kMostFixedResults / 48, 131072), 48);
  EXPECT_EQ(dealt_pieces(kMostFixedResults / 48 + 1, 131072), 1);
}

}  // namespace
// What all pieces' results have room for: a K/V head's pieces of sequences that have several.
TEST(WorkItems, DealtPiecesHaveRoomForTheirResults) {
  for (const std::int64_t kv_heads : {1, 8, 100}) {
    for (const std::int64_t sequences : {1, 3, 64, 1000}) {
      for (const std::int64_t units : {1, 7, 128, 5000}) {
        const std::int64_t all = sequences * units;
        const std::int64_t of_piece = units_of_piece<std::int64_t>(all, kv_heads);
        const std::int64_t pieces = pieces_of_units<std::int64_t>(units, of_piece, 128);
        EXPECT_GE(pieces, 1);
        EXPECT_GE(of_piece, kLeastPieceUnits);
        if (pieces == 1) continue;
        EXPECT_LE(sequences * pieces * kv_heads, kMostPieces)
            << kv_heads << ", " << sequences << " x " << units;
      }
    }
  }
  EXPECT_EQ(pieces_of_units(2048, units_of_piece(2048 + 63 * 16, 8), 128), 41)
      << "of a sequence that is most of all";
}

}  // namespace att
