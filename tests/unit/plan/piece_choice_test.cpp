// How long pieces of packed sequences are.
#include "templates/piece_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "generator/plan/pieces.hpp"

namespace attune {
namespace {

constexpr int kProcessors = 132;

// As the mla family has them: a processor's tensor cores take a unit in one unit of time.
constexpr att::PieceTimes kBusy = {
    .streamed = 1, .alone = 1, .together = 1, .round = 2, .merge = 3, .ctas = 1};
// As the decode family has them: memory takes longer for a unit of each processor's than a CTA
// that is alone on one.
constexpr att::PieceTimes kStreamed = {
    .streamed = 1, .alone = 0.75f, .together = 1.5f, .round = 5, .merge = 5, .ctas = 2};

// Of `batch` sequences of `units` units of keys with `items` items each.
double pieces_of(std::int64_t batch, double units, double items, int most = 64,
                 int processors = kProcessors, const att::PieceTimes& times = kBusy,
                 std::int64_t kv_heads = 1) {
  const AttentionSpec spec{.name = "t", .layout = Layout::kPaged};
  const ProblemShape shape{.batch = batch, .heads = 128, .kv_heads = kv_heads, .q_len = batch};
  return pieces_of_sequences(spec, shape, items, most, true, units, processors, times).of_mean;
}
double streamed_pieces(std::int64_t batch, double units, std::int64_t kv_heads) {
  return pieces_of(batch, units, 1, 16, kProcessors, kStreamed, kv_heads);
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

// Memory has enough to do with a CTA on each processor, and a second round waits twice.
TEST(PieceChoice, LeavesItemsWholeThatMemoryIsBusyWith) {
  EXPECT_EQ(streamed_pieces(64, 128, 2), 1) << "128 CTAs on 132 processors";
  EXPECT_EQ(streamed_pieces(64, 128, 4), 1) << "256 CTAs, two on each";
  EXPECT_EQ(streamed_pieces(64, 128, 8), 1) << "512 CTAs";
  EXPECT_EQ(streamed_pieces(16, 512, 8), 1);
}

TEST(PieceChoice, DealsFewSequencesToAllProcessorsInOneRound) {
  EXPECT_EQ(streamed_pieces(8, 128, 8), 2);
  EXPECT_EQ(streamed_pieces(4, 512, 8), 4);
  EXPECT_EQ(streamed_pieces(1, 2048, 8), 13) << "104 CTAs draw what memory has";
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
  for (const att::PieceTimes& times : {kBusy, kStreamed}) {
    for (const int pieces : {1, 100, 132, 133, 264, 265, 1000}) {
      for (const int longest : {1, 16, 64}) {
        const int all = pieces * longest;
        const float of_round = 1.0f / float(kProcessors * times.ctas);
        const float time = att::time_until_done({pieces, longest, 1}, all, of_round, times);
        EXPECT_GE(time * kProcessors, float(all) * times.streamed);
        EXPECT_GE(time, float(longest) * times.alone);
      }
    }
  }
}

}  // namespace
}  // namespace attune
