// How long pieces of packed sequences are.
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
  EXPECT_EQ(pieces_of(1, 6, 1), 1) << "a merge takes longer than half of it";
}

TEST(PieceChoice, IsAPartOfAllKeysWhereNothingIsCompared) {
  EXPECT_EQ(pieces_of(16, 128, 1, 64, 0), 19);  // of a 512th and 3 units
  EXPECT_EQ(pieces_of(1, 2048, 1, 128, 0), 128);
}

// Whatever is compared: no length is shorter than a piece may be, they grow, and sums fit.
TEST(PieceChoice, ComparesLengthsThatGrow) {
  for (const int all : {0, 1, 500, 4096, 1 << 29}) {
    for (const int processors : {1, 132}) {
      const int share = att::tile_count(all, processors);
      int before = att::kLeastPieceUnits;
      bool has_share = false;
      for (int which = 0; which < att::kLengthsCompared; ++which) {
        const int length = att::compared_length(share, which);
        has_share |= length == std::max(share, att::kLeastPieceUnits);
        EXPECT_TRUE(length >= before || length == att::kWholeLength);
        EXPECT_EQ(length, att::compared_length<std::int64_t>(share, which));
        before = length;
      }
      EXPECT_TRUE(has_share) << all << " units, " << processors << " processors";
    }
  }
}

// The time that is compared is no less than any order of the pieces takes, up to a piece.
TEST(PieceChoice, ReckonsNoLessThanTheWork) {
  for (const int pieces : {1, 100, 132, 133, 264, 265, 1000}) {
    for (const int longest : {1, 16, 64}) {
      const int all = pieces * longest;
      const float time =
          att::units_until_done({pieces, longest, 1}, all, 1.0f / float(kProcessors));
      EXPECT_GE(time * kProcessors, float(all));
      EXPECT_GE(time, float(longest));
    }
  }
}

}  // namespace
}  // namespace attune
