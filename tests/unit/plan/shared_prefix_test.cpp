// Which sequences share a prefix, and what entries a list has for them.
#include "templates/shared_prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace att {
namespace {

constexpr int kTile = 32;

// As the kernel does: from the first sequence of every run of neighbours.
std::vector<SharedSequence> shared(const std::vector<int>& common, const std::vector<int>& rows,
                                   int tile = kTile) {
  const int count = static_cast<int>(rows.size());
  std::vector<SharedSequence> records(rows.size());
  const auto at = [](auto& of, int b) -> auto& { return of[static_cast<std::size_t>(b)]; };
  for (int b = 0; b < count; ++b) {
    if (at(common, b) == 0 || (b > 0 && at(common, b - 1) > 0)) continue;
    share_prefixes(
        b, count, tile, [&](int i) { return at(common, i); }, [&](int i) { return at(rows, i); },
        [&](int i) -> SharedSequence& { return at(records, i); });
  }
  return records;
}

TEST(SharedPrefix, SixteenSequencesAreTwoItemsOfOneTeam) {
  std::vector<int> common(16, 32768 + 10);
  common.back() = 0;
  const auto records = shared(common, std::vector<int>(16, 4));
  for (int b = 0; b < 16; ++b) {
    const SharedSequence& of = records[static_cast<std::size_t>(b)];
    EXPECT_EQ(of.keys, 32768);
    EXPECT_EQ(of.first, b / 8 * 8);
    EXPECT_EQ(of.members, 8);
    EXPECT_EQ(of.row, b % 8 * 4);
    EXPECT_EQ(of.team, 0);
    EXPECT_EQ(of.rank, b / 8);
  }
  EXPECT_EQ(records[0].team_size, 2);
  EXPECT_EQ(records[0].team_end, 16);
}

TEST(SharedPrefix, ALongerPrefixWithTheNextBeginsAnItem) {
  // 0 and 1 share little, 1, 2 and 3 a lot.
  const auto records = shared({600, 9000, 9000, 0}, {4, 4, 4, 4});
  EXPECT_EQ(records[0].keys, 0);
  for (std::size_t b : {1u, 2u, 3u}) {
    EXPECT_EQ(records[b].keys, 8960);
    EXPECT_EQ(records[b].first, 1);
    EXPECT_EQ(records[b].members, 3);
  }
}

TEST(SharedPrefix, AShorterPrefixWithTheNextEndsAnItem) {
  const auto records = shared({9000, 9000, 600, 600, 0}, {4, 4, 4, 4, 4});
  EXPECT_EQ(records[2].keys, 8960);
  EXPECT_EQ(records[2].members, 3);
  EXPECT_EQ(records[3].keys, 576);
  EXPECT_EQ(records[3].first, 3);
  // A little shorter does not.
  EXPECT_EQ(shared({9000, 9000, 8000, 0}, {4, 4, 4, 4})[0].members, 4);
  EXPECT_EQ(shared({9000, 9000, 8000, 0}, {4, 4, 4, 4})[0].keys, 8000);
}

TEST(SharedPrefix, LittleInCommonIsNotShared) {
  for (const SharedSequence& of : shared({511, 511, 0}, {4, 4, 4})) EXPECT_EQ(of.keys, 0);
}

TEST(SharedPrefix, RowsThatFillMoreThanHalfAnItemTakeNoPart) {
  EXPECT_EQ(shared_rows(4, 1, 32), 4);
  EXPECT_EQ(shared_rows(4, 4, 32), 16);
  EXPECT_EQ(shared_rows(4, 5, 32), 0);
  EXPECT_EQ(shared_rows(4, 0, 32), 0);
  EXPECT_EQ(shared_rows(17, 1, 32), 0);
  EXPECT_EQ(shared_rows(1 << 20, INT_MAX, 32), 0);
}

TEST(SharedPrefix, UnitsCoverPrefixesOfAnyLength) {
  for (const int keys : {512, 513, 65535, 65536, 65600, 1 << 20, INT_MAX}) {
    const int whole = whole_units(keys);
    EXPECT_LE(whole, keys);
    EXPECT_GT(whole, keys - shared_unit_keys(keys));
    EXPECT_EQ(whole % shared_unit_keys(whole), 0);
    EXPECT_LE(whole / shared_unit_keys(whole), kMostSharedUnits);
    EXPECT_LE(tile_count<long long>(keys, shared_unit_keys(keys)), kMostSharedUnits);
  }
}

// What must hold of any batch.
void check(const std::vector<int>& common, const std::vector<int>& rows,
           const std::vector<SharedSequence>& records) {
  const int count = static_cast<int>(rows.size());
  for (int b = 0; b < count; ++b) {
    const SharedSequence& of = records[static_cast<std::size_t>(b)];
    if (of.keys == 0) continue;
    ASSERT_GE(of.keys, kLeastSharedKeys);
    ASSERT_EQ(of.keys, whole_units(of.keys));
    ASSERT_GE(of.members, 2);
    ASSERT_LE(of.first, b);
    ASSERT_LT(b, of.first + of.members);
    ASSERT_LE(of.first + of.members, count);
    int row = 0;
    for (int i = of.first; i < of.first + of.members; ++i) {
      const SharedSequence& other = records[static_cast<std::size_t>(i)];
      ASSERT_EQ(std::tuple(other.keys, other.first, other.members, other.team, other.rank),
                std::tuple(of.keys, of.first, of.members, of.team, of.rank));
      ASSERT_EQ(other.row, row);
      row += rows[static_cast<std::size_t>(i)];
      if (i + 1 < of.first + of.members) {
        ASSERT_GE(common[static_cast<std::size_t>(i)], of.keys) << "pages that differ are shared";
      }
    }
    ASSERT_LE(row, kTile);
    // The team: items one behind the other, with the same keys.
    const SharedSequence& leader = records[static_cast<std::size_t>(of.team)];
    ASSERT_EQ(leader.team, of.team);
    ASSERT_EQ(leader.rank, 0);
    ASSERT_EQ(leader.keys, of.keys);
    int first = of.team;
    for (int rank = 0; rank < leader.team_size; ++rank) {
      const SharedSequence& item = records[static_cast<std::size_t>(first)];
      ASSERT_EQ(std::tuple(item.team, item.rank, item.first), std::tuple(of.team, rank, first));
      first += item.members;
    }
    ASSERT_EQ(first, leader.team_end);
    ASSERT_LT(b, leader.team_end);
  }
}

TEST(SharedPrefix, WhateverTablesShareIsRead) {
  std::mt19937 random(1);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  int sharing = 0;
  for (int run = 0; run < 3000; ++run) {
    const int count = 1 + below(60);
    std::vector<int> common(static_cast<std::size_t>(count)), rows(common.size());
    int keys = below(5000);
    for (std::size_t b = 0; b < rows.size(); ++b) {
      if (below(5) == 0) keys = below(3) == 0 ? below(1 << 20) : below(5000);
      rows[b] = below(10) == 0 ? 0 : 1 + below(below(2) == 0 ? 4 : 16);
      common[b] = below(10) == 0 ? 0 : keys;
    }
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const bool has = b + 1 < rows.size() && rows[b] > 0 && rows[b + 1] > 0;
      if (!has || common[b] < kLeastSharedKeys) common[b] = 0;
    }
    const auto records = shared(common, rows);
    check(common, rows, records);
    if (HasFatalFailure()) FAIL() << "run " << run;
    sharing += static_cast<int>(
        std::ranges::count_if(records, [](const SharedSequence& of) { return of.keys > 0; }));
  }
  EXPECT_GT(sharing, 30000);
}

// Every piece of every prefix item, and of every sequence's own keys, has one entry; pieces of a
// team stand side by side.
TEST(SharedPrefix, EveryPieceHasAnEntry) {
  std::vector<int> common(20, 4096);
  common.back() = 0;
  std::vector<SharedSequence> records = shared(common, std::vector<int>(20, 4));
  constexpr int kPrefixPieces = 5, kOwnPieces = 2, kParts = 1;
  std::multiset<std::tuple<int, int, int>> seen;  // sequence, members, piece
  std::vector<SharedPieceItem> list;
  for (SharedSequence& of : records) of.prefix_pieces = kPrefixPieces, of.own_pieces = kOwnPieces;
  for (int b = 0; b < 20; ++b) {
    const SharedSequence& of = records[static_cast<std::size_t>(b)];
    const int of_team = of.team == b ? of.team_size * kPrefixPieces : 0;
    for (int i = 0; i < of_team + kOwnPieces; ++i) {
      list.push_back(shared_entry(records.data(), b, of, kParts, i));
      seen.insert({list.back().sequence, list.back().members, list.back().piece});
    }
  }
  EXPECT_EQ(list.size(), seen.size());
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
  EXPECT_EQ(records[0].team_size, 3);
  for (int i = 0; i < 3 * kPrefixPieces; ++i) {
    const SharedPieceItem& entry = list[static_cast<std::size_t>(i)];
    EXPECT_EQ(entry.piece, i / 3);
    EXPECT_EQ(entry.sequence, i % 3 * 8);
    EXPECT_EQ(entry.members, i % 3 == 2 ? 4 : 8);
  }
}

TEST(SharedPrefix, RoomIsBounded) {
  for (const int kv_heads : {1, 8, 32, 5000}) {
    for (const int batch : {1, 16, 5000}) {
      const int room = shared_result_room(batch, kv_heads);
      EXPECT_LE(room * kv_heads, kMostSharedResults);
      if (kv_heads <= 32 && batch <= 16) {
        EXPECT_GE(room, kMostPieces / kv_heads + batch);
      }
    }
  }
}

}  // namespace
}  // namespace att
