// The cost model's choices for packed sequences and caches in pages, as docs/lab/serving_cliffs.md
// has them measured.
#include <gtest/gtest.h>

#include "generator/plan/live_share.hpp"
#include "generator/plan/plan.hpp"
#include "generator/plan/sequence_lengths.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

const DeviceFacts kHopper = device_facts(Target::kSm90a);

AttentionSpec packed(Layout layout, int head_dim, std::string_view mask = "causal") {
  const std::string text =
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: " + std::to_string(head_dim) +
      "\nlayout: " + (layout == Layout::kThd ? "thd" : "paged") + "\nmask: " + std::string(mask);
  return parse_spec(text, "").value();
}

KernelPlan chosen(const AttentionSpec& spec, const ProblemShape& shape) {
  return default_plan(spec, shape, kHopper).value();
}

TEST(ServingPlan, StretchesNeedRegistersBesideFragments) {
  const auto has_stretches = [](int head_dim) {
    const AttentionSpec spec = packed(Layout::kPaged, head_dim);
    for (const KernelPlan& plan : legal_plans(spec, Family::kDecode, kHopper)) {
      if (std::get<DecodePlan>(plan.tile).stretches) return true;
    }
    return false;
  };
  EXPECT_TRUE(has_stretches(192));
  EXPECT_FALSE(has_stretches(256));
}

// 64 sequences of 149 keys on average: 19.7 us, in stretches, which cut nearly all of them, 25.3.
TEST(ServingPlan, ShortSequencesAreListed) {
  const ProblemShape shape{64, 16, 4, 64, 9564};
  const KernelPlan plan = chosen(packed(Layout::kThd, 64), shape);
  ASSERT_EQ(plan.family(), Family::kDecode);
  const DecodePlan& tile = std::get<DecodePlan>(plan.tile);
  EXPECT_FALSE(tile.stretches || tile.in_cluster) << to_string(plan);
}

// 32 of up to 4096 keys and a window, 512 clusters of which 56 fit: 99 us, from a list 58.
TEST(ServingPlan, ManyClustersWait) {
  const AttentionSpec spec = packed(Layout::kPaged, 128, "causal and q_pos - kv_idx < 512");
  const ProblemShape shape{32, 24, 8, 256, 4096};
  const auto cost = [&](const char* tile) {
    const auto plan = parse_plan(std::string("decode forward sm_90a ") + tile);
    return cost_us(spec, plan.value(), shape, kHopper);
  };
  EXPECT_GT(cost("q16 k16 s3 w4 p4 cluster"), 1.5 * cost("q16 k16 s3 w4 p16"));
}

// 16 sequences of 8 queries and 256 keys: 23.1 us by the tensor units' kernel, 16.8 by this.
TEST(ServingPlan, FewQueriesDoNotWaitForAListOfTiles) {
  const ProblemShape shape{16, 16, 8, 128, 256};
  EXPECT_EQ(chosen(packed(Layout::kPaged, 96), shape).family(), Family::kDecode);
}

// 16 sequences of 8 queries and up to 256 keys: 21.8 us by 32 rows and eight warps, 18.4 by 16.
TEST(ServingPlan, WideItemsOfFewKeysTakeLonger) {
  const ProblemShape shape{16, 32, 8, 128, 256};
  const auto cost = [&](const char* tile) {
    const auto plan = parse_plan(std::string("decode forward sm_90a ") + tile);
    return cost_us(packed(Layout::kPaged, 128), plan.value(), shape, kHopper);
  };
  EXPECT_GT(cost("q32 k16 s3 w8 p16"), cost("q16 k16 s3 w4 p16"));
}

// 32 sequences of up to 15756 keys, 12 heads on one, d 64: 45.8 us in clusters of four, whose CTAs
// have a processor each, 31.6 in clusters of eight; 8 of 2048, 8 K/V heads, 19.7 and 26.0 by eight
// warps.
TEST(ServingPlan, FourWarpsAloneOnAProcessorTakeLonger) {
  const AttentionSpec paged = packed(Layout::kPaged, 64), thd = packed(Layout::kThd, 64);
  const auto cost = [&](const AttentionSpec& spec, const ProblemShape& shape, const char* tile) {
    const auto plan = parse_plan(std::string("decode forward sm_90a ") + tile);
    return cost_us(spec, plan.value(), shape, kHopper);
  };
  const ProblemShape few{32, 12, 1, 32, 15756}, many{8, 64, 8, 8, 16384};
  EXPECT_GT(cost(paged, few, "q16 k16 s3 w4 p4 cluster"),
            1.1 * cost(paged, few, "q16 k16 s3 w4 p8 cluster"));
  EXPECT_LT(cost(thd, many, "q16 k16 s3 w4 p4 cluster"),
            cost(thd, many, "q16 k16 s3 w8 p4 cluster"));
}

// A chunk of 1976 queries beside 15 single ones, 7 heads on one: 362 us in tiles of two
// warpgroups' queries in a static order, 284 with a head each and the longest first.
TEST(ServingPlan, ChunksBesideSingleTokensComeLongestFirst) {
  const ProblemShape shape{16, 56, 8, 1991, 66143};
  const KernelPlan plan = chosen(packed(Layout::kThd, 128), shape);
  ASSERT_EQ(plan.family(), Family::kSm90a);
  EXPECT_EQ(std::get<Sm90aPlan>(plan.tile).schedule, Sm90aPlan::Schedule::kLongestFirst)
      << to_string(plan);
}

// 32 chunks of 100 queries on 8192 keys and a window of 4096, of which memory gives half: 834 us in
// stretches, 317 by the tensor units' kernel.
TEST(ServingPlan, AWindowLeavesFewerKeys) {
  const ProblemShape shape{32, 16, 16, 3200, 8192};
  const AttentionSpec spec = packed(Layout::kPaged, 96, "causal and q_pos - kv_idx < 4096");
  EXPECT_EQ(chosen(spec, shape).family(), Family::kSm90a);
}

// 8 x 5 queries of 12 heads that share a K/V head, on 70k keys, 16 rows at a time: 267 us in
// stretches, from a list 190.
TEST(ServingPlan, StretchesDrawKeysAgainForFurtherRows) {
  const ProblemShape shape{8, 96, 8, 40, 69899};
  const AttentionSpec spec = packed(Layout::kThd, 128);
  const auto cost = [&](const char* tile) {
    const auto plan = parse_plan(std::string("decode forward sm_90a ") + tile);
    return cost_us(spec, plan.value(), shape, kHopper);
  };
  EXPECT_GT(cost("q16 k16 s3 w8 p16 stretches"), 1.3 * cost("q16 k16 s3 w8 p16"));
}

// 512 queries beside 31 single tokens of up to 7823 keys, 16 heads on 2, in pages of 16: 190 us by
// a warpgroup of two heads, 118 by two of eight heads in pieces, 130 uncut, by one of four 133.
TEST(ServingPlan, SingleTokensOfAGroupShareAnItemBesideAChunk) {
  const KernelPlan plan = chosen(packed(Layout::kPaged, 128), {32, 16, 2, 543, 7823});
  EXPECT_EQ(to_string(plan),
            "sm90a forward sm_90a w2 k128 s3 b2 qreg c1 longest g16 frozen tma heads8 p16");
  // Of 32 heads on 8, whose tokens are one item so, 160 us, of one warpgroup's 157 to 166; 2048
  // beside 127 616, of one warpgroup's 626.
  for (const ProblemShape& shape : {ProblemShape{32, 32, 8, 543, 7647}, {128, 32, 8, 2175, 7891}}) {
    EXPECT_EQ(to_string(chosen(packed(Layout::kPaged, 128), shape)),
              "sm90a forward sm_90a w2 k128 s3 b2 qreg c1 longest g16 frozen tma heads4");
  }
}

// 2048 queries beside 31 single tokens of up to 31503 keys, eight heads on one: 272 us by a
// warpgroup for a head, which is an item more for every two heads of a token, 138 by eight heads an
// item. Beside 16 of up to 32768, twelve on one: 294 us by one warpgroup, whole, 144 by two in
// pieces.
TEST(ServingPlan, SingleTokensBesideALongChunkToo) {
  const auto tile = [](const ProblemShape& shape) {
    const KernelPlan plan = chosen(packed(Layout::kPaged, 128), shape);
    return std::get<Sm90aPlan>(plan.tile);
  };
  const Sm90aPlan of_eight = tile({32, 8, 1, 2079, 31503}),
                  of_twelve = tile({17, 12, 1, 2575, 32768});
  EXPECT_EQ(of_eight.heads, 8);
  EXPECT_GT(of_eight.pieces, 1);
  EXPECT_EQ(of_twelve.warpgroups, 2);
  EXPECT_GT(of_twelve.pieces, 1);
}

// Lists of the decode family have memory wait for a chunk: 2048 queries and 127 single tokens of 16
// heads, d 64, 930 us, by stretches 972, by four plans of the tensor unit 693 to 723.
TEST(ServingPlan, MemoryWaitsForAChunkOfTheDecodeFamily) {
  const AttentionSpec spec = packed(Layout::kPaged, 64);
  const ProblemShape shape{128, 16, 16, 2175, 8176};
  EXPECT_EQ(chosen(spec, shape).family(), Family::kSm90a);
  // Single tokens alone: 586 to 616 us, by the tensor unit 614 to 645.
  EXPECT_EQ(chosen(spec, {127, 16, 16, 127, 8176}).family(), Family::kDecode);
}

// 2048 queries behind 8192 keys, 16 heads, d 64: 176 items of three warpgroups on 132 processors
// are two rounds, 230 us, and 256 of two 179.
TEST(ServingPlan, AChunksItemsTakeWholeRounds) {
  const KernelPlan plan = chosen(packed(Layout::kPaged, 64), {1, 16, 16, 2048, 10240});
  ASSERT_EQ(plan.family(), Family::kSm90a);
  EXPECT_EQ(std::get<Sm90aPlan>(plan.tile).warpgroups, 2) << to_string(plan);
}

// 2048 queries behind 8192 keys of 32 heads, d 128, in pages of 64: three warpgroups' tiles of 80
// keys, which come in boxes of 16 rows, 545 us, of 64 keys 483. Two warpgroups' of 128 keys 424,
// and 532 in pages of 16.
TEST(ServingPlan, TilesAreOfWholeBoxes) {
  const KernelPlan plan = chosen(packed(Layout::kPaged, 128), {1, 32, 8, 2048, 10240});
  ASSERT_EQ(plan.family(), Family::kSm90a);
  EXPECT_EQ(std::get<Sm90aPlan>(plan.tile).tile_kv % 64, 0) << to_string(plan);
  EXPECT_EQ(std::get<Sm90aPlan>(plan.tile).warpgroups, 2) << to_string(plan);
}

// Four chunks of 128 to 512 queries on 256 to 8320 keys, 8 heads, d 256: 147 us in the order of a
// grid, 76 from a list that cuts the longest.
TEST(ServingPlan, TheLongestOfAFewChunksIsCut) {
  const KernelPlan plan = chosen(packed(Layout::kPaged, 256), {4, 8, 8, 1408, 8320});
  ASSERT_EQ(plan.family(), Family::kSm90a);
  EXPECT_GT(std::get<Sm90aPlan>(plan.tile).pieces, 1) << to_string(plan);
}

// 512 queries beside 31 single tokens of up to 900 keys, 64 heads on 8: 79 us where a warpgroup has
// rows of two heads, which is a tile more for each token, 56 of four.
TEST(ServingPlan, SingleTokensOfEightHeadsAreOneItem) {
  const KernelPlan plan = chosen(packed(Layout::kPaged, 128), {32, 64, 8, 543, 900});
  ASSERT_EQ(plan.family(), Family::kSm90a);
  EXPECT_EQ(std::get<Sm90aPlan>(plan.tile).heads, 8) << to_string(plan);
}

TEST(ServingPlan, WideHeadsHave32RowsWherePacked) {
  const KernelPlan plan = parse_plan("decode forward sm_90a q32 k16 s3 w4 p16").value();
  EXPECT_TRUE(check_plan(packed(Layout::kPaged, 128), plan, kHopper).ok());
  EXPECT_FALSE(check_plan(packed(Layout::kPaged, 192), plan, kHopper).ok());
  EXPECT_FALSE(check_plan(plain_spec(128), plan, kHopper).ok());
}

// A scheduler widens fp8 for one warp while another waits: 16 sequences of up to 3278 keys, d 96,
// 31 us with room for two CTAs, 37 with six stages, which leave none.
TEST(ServingPlan, StretchesOfAnFp8CacheHaveTwoWarpsAScheduler) {
  AttentionSpec spec = packed(Layout::kPaged, 96);
  spec.kv_dtype = DType::kFp8E4m3;
  const KernelPlan plan = chosen(spec, {16, 56, 8, 16, 3278});
  ASSERT_EQ(plan.family(), Family::kDecode);
  const DecodePlan& tile = std::get<DecodePlan>(plan.tile);
  EXPECT_TRUE(tile.stretches && tile.stages == 3) << to_string(plan);
}

TEST(LiveShare, OfABandTheQueriesSeeItsWidthAndTheirNumber) {
  const ProblemShape chunk{.heads = 1, .kv_heads = 1, .q_len = 100, .kv_len = 10000};
  EXPECT_DOUBLE_EQ(seen_keys({.share = 0.1}, chunk), 0.11);
  EXPECT_DOUBLE_EQ(seen_keys({.share = 0.5, .reads_tensors = true}, chunk), 1);
  EXPECT_DOUBLE_EQ(seen_keys({.share = 0.5, .is_described = true, .keys = 0.7}, chunk), 0.7);
  const ProblemShape whole{.heads = 1, .kv_heads = 1, .q_len = 1000, .kv_len = 1000};
  EXPECT_DOUBLE_EQ(seen_keys({.share = 0.5}, whole), 1);
}

TEST(SequenceLengths, OfOneTileOrMore) {
  const AttentionSpec dense = plain_spec(), spec = packed(Layout::kThd, 64);
  for (const std::int64_t queries : {1, 5, 16, 100, 129, 1000}) {
    const ProblemShape shape{
        .batch = 4, .heads = 8, .kv_heads = 8, .q_len = queries, .kv_len = 1000};
    for (const double rows : {64.0, 128.0, 192.0}) {
      const double whole = std::ceil(double(queries) / rows);
      EXPECT_EQ(mean_query_tiles(dense, shape, rows), whole);
      EXPECT_GE(mean_query_tiles(spec, shape, rows), 1);
      EXPECT_LE(mean_query_tiles(spec, shape, rows), whole + 0.5);
      EXPECT_GE(mean_query_tiles(spec, shape, rows), double(queries) / rows);
    }
  }
}

TEST(SequenceLengths, ATileForEachSingleTokenBesideChunks) {
  const AttentionSpec spec = packed(Layout::kPaged, 64);
  const ProblemShape step{.batch = 32, .heads = 8, .kv_heads = 8, .q_len = 17, .kv_len = 8192};
  EXPECT_TRUE(has_chunks_beside_tokens(spec, step));
  EXPECT_DOUBLE_EQ(mean_query_tiles(spec, step, 32), 1.5);
  EXPECT_FALSE(has_chunks_beside_tokens(plain_spec(), step));
  for (const std::int64_t queries : {1, 8, 64}) {  // single tokens, drafted ones, chunks
    ProblemShape other = step;
    other.q_len = queries;
    EXPECT_FALSE(has_chunks_beside_tokens(spec, other)) << queries;
  }
}

// Long ones where heads share keys, and the context is much longer than a mean sequence's queries.
TEST(SequenceLengths, LongChunksBesideTokensOfFewSequences) {
  const AttentionSpec spec = packed(Layout::kPaged, 64);
  const ProblemShape step{.batch = 8, .heads = 8, .kv_heads = 2, .q_len = 129, .kv_len = 8192};
  EXPECT_TRUE(has_long_chunks_beside_tokens(spec, step));
  EXPECT_DOUBLE_EQ(mean_query_tiles(spec, step, 64), 2.4);
  ProblemShape alone = step, few = step, prompts = step, short_ones = step;
  alone.kv_heads = 8;
  few.batch = 6;
  prompts.kv_len = 1000;
  short_ones.q_len = 63;
  for (const ProblemShape& other : {alone, few, prompts, short_ones})
    EXPECT_FALSE(has_long_chunks_beside_tokens(spec, other)) << to_string(other);
}

// What a mask leaves may not cost more where it leaves less.
TEST(SequenceLengths, WhatIsFilledGrowsWithTheMask) {
  const AttentionSpec spec = packed(Layout::kPaged, 64);
  const ProblemShape shape{.batch = 4, .heads = 8, .kv_heads = 8, .q_len = 4, .kv_len = 1000};
  double before = 0;
  for (double share = 0.01; share <= 1; share += 0.01) {
    const double work = share * filled_share(spec, shape, share);
    EXPECT_GT(work, before);
    before = work;
  }
  EXPECT_EQ(filled_share(packed(Layout::kThd, 64), shape, 1), 1);
}

}  // namespace
}  // namespace attune
