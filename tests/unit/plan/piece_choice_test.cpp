// How long pieces of packed sequences are where they are to fill the processors.
#include "templates/piece_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "generator/plan/pieces.hpp"

namespace attune {
namespace {

constexpr int kProcessors = 132;

// Of `batch` sequences of `units` units of keys with `items` items each.
double pieces_of(std::int64_t batch, double units, double items, int most = 64,
                 int processors = kProcessors) {
  const AttentionSpec spec{.name = "t", .layout = Layout::kPaged};
  const ProblemShape shape{.batch = batch, .heads = 128, .kv_heads = 1, .q_len = batch};
  return pieces_of_sequences(spec, shape, items, most, true, units, processors).of_mean;
}

TEST(PieceChoice, FillsTheProcessorsOnce) {
  EXPECT_EQ(pieces_of(16, 128, 2), 4);  // 128 heads, 16 x 8192 keys: 128 pieces
  EXPECT_EQ(pieces_of(16, 128, 1), 8);
  EXPECT_EQ(pieces_of(16, 128, 2, 64, 64), 2);
}

TEST(PieceChoice, LeavesItemsWholeThatFillThem) {
  EXPECT_EQ(pieces_of(128, 64, 1), 1);
  EXPECT_EQ(pieces_of(128, 64, 2), 1) << "two rounds of whole ones end before four of halves";
  EXPECT_EQ(pieces_of(1000, 64, 1), 1);
}

TEST(PieceChoice, KeepsToWhatPlansAndSequencesAllow) {
  EXPECT_EQ(pieces_of(1, 2048, 2, 32), 32);
  EXPECT_EQ(pieces_of(1, 2048, 2, 128), 64);  // 128 heads: 128 pieces
  EXPECT_EQ(pieces_of(1, 2048, 1, 128), 128);
  EXPECT_EQ(pieces_of(1, 1, 1), 1);
  EXPECT_EQ(pieces_of(1, 0, 1), 1);
}

// Whatever is compared: no length is shorter than a piece may be, and they grow.
TEST(PieceChoice, ComparesLengthsThatGrow) {
  for (const long long all : {0LL, 1LL, 500LL, 4096LL, 1LL << 40}) {
    for (const long long processors : {1LL, 132LL}) {
      long long before = att::kLeastPieceUnits;
      for (int which = 0; which < att::kLengthsCompared; ++which) {
        const long long length = att::compared_length(all, processors, which);
        EXPECT_GE(length, before);
        before = length;
      }
      EXPECT_GE(before * processors, all) << "one of them is a processor's whole share";
    }
  }
}

// The time that is compared is no less than any order of the pieces takes, up to a piece.
TEST(PieceChoice, ReckonsNoLessThanTheWork) {
  for (const int pieces : {1, 100, 132, 133, 1000}) {
    for (const int longest : {1, 16, 64}) {
      const long long all = static_cast<long long>(pieces) * longest;
      const long long units = att::units_until_done({pieces, longest, 1}, all, kProcessors);
      EXPECT_GE(units * kProcessors, all);
      EXPECT_GE(units, longest);
    }
  }
}

}  // namespace
}  // namespace attune
