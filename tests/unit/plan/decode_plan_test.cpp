#include <gtest/gtest.h>

#include <set>

#include "generator/plan/decode.hpp"
#include "generator/plan/plan.hpp"
#include "templates/work_items.h"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

using Content = WorkspaceRegion::Content;

const DeviceFacts kHopper = device_facts(Target::kSm90a);

KernelPlan plan_of(int tile_q, int pieces) {
  return {.pass = Pass::kForward,
          .target = Target::kSm90a,
          .tile = DecodePlan{.tile_q = tile_q, .pieces = pieces}};
}

std::int64_t bytes_of(const AttentionSpec& spec, const LaunchRecipe& recipe,
                      const ProblemShape& shape) {
  return workspace_bytes(spec, recipe.workspace, shape);
}

TEST(DecodePlan, ServesWhatHasNoDropout) {
  AttentionSpec spec = plain_spec();
  EXPECT_FALSE(legal_plans(spec, Family::kDecode, kHopper).empty());
  EXPECT_TRUE(legal_plans(spec, Family::kDecode, device_facts(Target::kCpu)).empty());
  spec.dropout.value = 0.25;
  EXPECT_TRUE(legal_plans(spec, Family::kDecode, kHopper).empty());
}

// 512 items have two pieces with every larger number: nobody need measure the same launch twelve
// times.
TEST(DecodePlan, WhatALaunchDoesStandsInTheOrderOnce) {
  const AttentionSpec spec = plain_spec();
  const auto piece_numbers = [&](std::int64_t batch) {
    std::set<int> listed, clusters;
    const ProblemShape shape{
        .batch = batch, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 8192};
    const auto plans = plans_by_cost(spec, shape, kHopper);
    EXPECT_TRUE(plans.ok());
    for (const KernelPlan& plan : *plans) {
      if (const auto* tile = std::get_if<DecodePlan>(&plan.tile))
        (tile->in_cluster ? clusters : listed).insert(tile->pieces);
    }
    EXPECT_EQ(clusters, (std::set{2, 4, 8}));
    return listed;
  };
  EXPECT_EQ(piece_numbers(64), (std::set{1, 2}));
  EXPECT_EQ(piece_numbers(128), (std::set{1}));
  EXPECT_EQ(piece_numbers(24), (std::set{1, 2, 3, 4, 6})) << "five pieces, with 6 and with 8";
  EXPECT_EQ(piece_numbers(1).size(), 13u);
}

// The last query tile of a causal prompt has twice the mean's keys, and all begin together.
TEST(DecodePlan, TheLongestItemOfACausalPromptEndsLast) {
  const auto parsed = [](const std::string& mask) {
    return parse_spec("attune: 1\nname: t\ndtype: fp16\nhead_dim: 112\n" + mask, "").value();
  };
  const AttentionSpec causal = parsed("mask: causal\n"), full = parsed("");
  const auto expected_us = [](const AttentionSpec& spec, std::int64_t batch) {
    return cost_us(spec, plan_of(32, 1),
                   {.batch = batch, .heads = 2, .kv_heads = 2, .q_len = 1025, .kv_len = 1025},
                   kHopper);
  };
  EXPECT_GT(expected_us(causal, 3), 0.6 * expected_us(full, 3));
  EXPECT_LT(expected_us(causal, 64), 0.6 * expected_us(full, 64));
}

TEST(DecodePlan, IsChosenForFewQueriesOnManyKeysAlone) {
  const AttentionSpec spec = plain_spec();
  for (const std::int64_t batch : {1, 8, 64}) {
    for (const std::int64_t keys : {1024, 8192, 131072}) {
      const ProblemShape shape{
          .batch = batch, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = keys};
      const auto plan = default_plan(spec, shape, kHopper);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(plan->family(), Family::kDecode) << batch << " x " << keys;
    }
  }
  for (const std::int64_t length : {512, 4096, 16384}) {
    const ProblemShape shape{
        .batch = 2, .heads = 16, .kv_heads = 16, .q_len = length, .kv_len = length};
    const auto plan = default_plan(spec, shape, kHopper);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->family(), Family::kSm90a) << length;
  }
}

// Narrow heads bring it little to read, and as many scores as others.
TEST(DecodePlan, IsNotChosenForPromptsOfNarrowHeads) {
  const AttentionSpec spec = plain_spec(16);
  for (const std::int64_t length : {1024, 4096, 16384}) {
    const ProblemShape shape{
        .batch = 2, .heads = 20, .kv_heads = 20, .q_len = length, .kv_len = length};
    const auto plan = default_plan(spec, shape, kHopper);
    ASSERT_TRUE(plan.ok());
    EXPECT_NE(plan->family(), Family::kDecode) << length;
  }
}

TEST(DecodePlan, SmallBatchesAreDealtToManyProcessors) {
  const AttentionSpec spec = plain_spec();
  const auto ctas = [&](std::int64_t batch) {
    const ProblemShape shape{
        .batch = batch, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 65536};
    const auto plan = default_plan(spec, shape, kHopper);
    const LaunchRecipe recipe = launch_recipe(spec, *plan);
    const std::int64_t items = item_count(spec, recipe, recipe.main(), shape);
    return static_cast<int>(*grid_size(recipe.main(), items, kHopper.processor_count));
  };
  EXPECT_GE(ctas(1), 64) << "a cluster of eight for each K/V head";
  EXPECT_LE(ctas(1), 4 * kHopper.processor_count);
  EXPECT_EQ(ctas(128), 128 * 8) << "one piece: there is nothing to merge";
}

// Eight K/V heads, so eight items a batch entry.
TEST(DecodePlan, PiecesAreBounded) {
  const AttentionSpec spec = plain_spec();
  const LaunchRecipe recipe = launch_recipe(spec, plan_of(16, 64));
  ProblemShape shape{.batch = 1, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 1000};
  const auto items = [&] { return item_count(spec, recipe, recipe.main(), shape); };
  EXPECT_EQ(items(), 8 * 64);
  EXPECT_EQ(bytes_of(spec, recipe, shape), 8 * 64 * 16 * (128 + 2) * 4 + 8 * 8);
  shape.batch = 8;
  EXPECT_EQ(items(), 64 * (att::kMostPieces / 64));
  shape.batch = 100;
  EXPECT_EQ(items(), 800);
  EXPECT_EQ(bytes_of(spec, recipe, shape), 0);
  EXPECT_TRUE(launch_recipe(spec, plan_of(16, 1)).workspace.empty());
}

TEST(DecodePlan, WhatIsPromisedCoversEveryPlan) {
  const AttentionSpec spec = plain_spec();
  const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
  for (const KernelPlan& plan : legal_plans(spec, Family::kDecode, kHopper)) {
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
    for (const std::int64_t queries : {1, 3, 6, 17, 40}) {
      const ProblemShape shape{
          .batch = 3, .heads = 30, .kv_heads = 3, .q_len = queries, .kv_len = 5000};
      EXPECT_GE(workspace_bytes(spec, promised, shape), bytes_of(spec, recipe, shape))
          << to_string(plan) << ", " << queries << " queries";
    }
  }
}

TEST(DecodePlan, ClustersOfPiecesNeedNoWorkspace) {
  const AttentionSpec spec = plain_spec();
  const auto plan = parse_plan("decode forward sm_90a q16 k16 s3 w4 p8 cluster");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_EQ(to_string(*plan), "decode forward sm_90a q16 k16 s3 w4 p8 cluster");
  ASSERT_TRUE(check_plan(spec, *plan, kHopper).ok());
  const LaunchRecipe recipe = launch_recipe(spec, *plan);
  EXPECT_TRUE(recipe.workspace.empty());
  EXPECT_TRUE(recipe.main().zeroed.empty());
  const ProblemShape shape{.batch = 200, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 1000};
  const std::int64_t items = item_count(spec, recipe, recipe.main(), shape);
  EXPECT_EQ(*grid_size(recipe.main(), items, kHopper.processor_count), 200u * 8 * 8);
}

// No sequence has more tiles than what a launch of clusters has room for.
TEST(DecodePlan, ClustersOfPackedSequencesFindTheirTiles) {
  AttentionSpec spec = plain_spec();
  spec.layout = Layout::kPaged;
  const auto plan = parse_plan("decode forward sm_90a q16 k16 s3 w8 p8 cluster");
  ASSERT_TRUE(check_plan(spec, *plan, kHopper).ok());
  const LaunchRecipe recipe = launch_recipe(spec, *plan);
  EXPECT_EQ(recipe.launches.size(), 1u) << "nobody deals out anything";
  EXPECT_TRUE(recipe.workspace.empty());
  for (const std::int64_t heads : {1, 2, 3, 4, 5, 7, 16, 40, 100}) {
    for (const std::int64_t queries : {1, 2, 3, 5, 6, 9, 16, 17, 33, 100}) {
      for (const std::int64_t sequences : {1, 3, 50}) {
        const ProblemShape shape{.batch = 2 * sequences,  // half of them have no queries
                                 .heads = heads,
                                 .kv_heads = 1,
                                 .q_len = sequences * queries,
                                 .kv_len = 1000};
        const std::int64_t tiles =
            att::packed_tiles<std::int64_t>(heads, 1, queries, 16).per_kv_head() * sequences;
        EXPECT_LE(tiles, item_count(spec, recipe, recipe.main(), shape))
            << heads << ", " << queries;
      }
    }
  }
  const ProblemShape one{.batch = 1, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 1000};
  EXPECT_EQ(item_count(spec, recipe, recipe.main(), one), 8);
}

// How long one packed sequence is beside the others no shape says.
TEST(DecodePlan, NoPlanLeavesALongSequenceToFewCtas) {
  for (const Layout layout : {Layout::kThd, Layout::kPaged}) {
    AttentionSpec spec = plain_spec();
    spec.layout = layout;
    for (const KernelPlan& plan : legal_plans(spec, Family::kDecode, kHopper)) {
      const DecodePlan& tile = std::get<DecodePlan>(plan.tile);
      if (decode::finds_whole_items(spec, tile)) continue;  // which is for short sequences
      EXPECT_GE(tile.pieces, tile.in_cluster ? 4 : 16) << to_string(plan);
    }
    for (const std::int64_t sequences : {1, 2, 8, 64, 256}) {
      const ProblemShape shape{.batch = sequences,
                               .heads = 32,
                               .kv_heads = 8,
                               .q_len = sequences,
                               .kv_len = 8192 * (layout == Layout::kThd ? sequences : 1)};
      const auto plan = default_plan(spec, shape, kHopper, Pass::kForward);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      ASSERT_EQ(plan->family(), Family::kDecode);
      const DecodePlan& tile = std::get<DecodePlan>(plan->tile);
      EXPECT_EQ(tile.in_cluster, sequences < 8) << sequences << " sequences";
      EXPECT_GT(tile.pieces, 1) << sequences << " sequences";
      const auto measured_plans = plans_by_cost(spec, shape, kHopper, Pass::kForward);
      for (const KernelPlan& each : measured_plans.value()) {
        const auto* measured = std::get_if<DecodePlan>(&each.tile);
        EXPECT_FALSE(measured != nullptr && (sequences > 1 || layout == Layout::kPaged) &&
                     decode::finds_whole_items(spec, *measured))
            << to_string(each);
      }
    }
  }
}

// Then a list cuts none, and CTAs need not wait for it.
TEST(DecodePlan, ShortSequencesInPagesAreWholeItems) {
  AttentionSpec spec = plain_spec();
  spec.head_dim_qk = spec.head_dim_v = 128;
  spec.layout = Layout::kPaged;
  const auto is_whole = [&](std::int64_t sequences, std::int64_t keys) {
    const ProblemShape shape{sequences, 32, 8, sequences, keys};
    const KernelPlan plan = default_plan(spec, shape, kHopper, Pass::kForward).value();
    const auto* tile = std::get_if<DecodePlan>(&plan.tile);
    const bool whole = tile != nullptr && decode::finds_whole_items(spec, *tile);
    if (whole) {
      const LaunchRecipe recipe = launch_recipe(spec, plan);
      EXPECT_EQ(recipe.launches.size(), 1u);
      EXPECT_EQ(recipe.main().item, WorkItem::kFoundTile);
      EXPECT_TRUE(recipe.workspace.empty());
      EXPECT_EQ(recipe.main().cluster, 1);
    }
    return whole;
  };
  EXPECT_TRUE(is_whole(16, 200));
  EXPECT_TRUE(is_whole(64, 500));
  EXPECT_TRUE(is_whole(256, 224)) << "no CTA of a single token looks through 256 sequences";
  EXPECT_FALSE(is_whole(256, 8192)) << "one that is much longer than the others keeps a CTA";
  spec.batch_invariant = true;
  EXPECT_FALSE(is_whole(64, 500));
}

// As measured on an H200: stretches where CTAs have an item each or less, the list where they have
// more (docs/lab/decode.md).
TEST(DecodePlan, StretchesAreForFewItems) {
  struct Packed {
    std::int64_t sequences, kv_heads, keys;  // keys of all
    bool stretches;
  };
  AttentionSpec spec = plain_spec();
  spec.head_dim_qk = spec.head_dim_v = 128;
  spec.layout = Layout::kThd;
  for (const Packed& of :
       {Packed{8, 8, 8 * 8192, true}, Packed{16, 8, 16 * 32768, true},
        Packed{64, 2, 64 * 8192, true}, Packed{64, 4, 64 * 8192, true},
        Packed{64, 8, 64 * 8192, false}, Packed{128, 8, 128 * 4096, false},
        Packed{64, 32, 64 * 8192, false}, Packed{64, 8, 131072 + 63 * 1024, false}}) {
    const ProblemShape shape{.batch = of.sequences,
                             .heads = 32,
                             .kv_heads = of.kv_heads,
                             .q_len = of.sequences,
                             .kv_len = of.keys};
    const auto plan = default_plan(spec, shape, kHopper, Pass::kForward);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    EXPECT_EQ(std::get<DecodePlan>(plan->tile).stretches, of.stretches)
        << of.sequences << " sequences, " << of.kv_heads << " heads: " << to_string(*plan);
  }
}

// Lengths of a mask: one row waits for the longest in the end. An H200 takes 187 us for whole items
// with two CTAs on a processor, 166 for two pieces in a cluster, 296 for eight.
TEST(DecodePlan, UnevenLengthsArePiecesOfAFew) {
  auto spec = parse_spec(
      "attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: padding(lengths)\n"
      "tensors: {lengths: {dtype: int32, dims: [batch], sample: 'lengths(0.05, 1)'}}\n",
      "");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  const ProblemShape shape{64, 32, 8, 1, 8192};
  const auto cost = [&](const char* tile) {
    const auto plan = parse_plan(std::string("decode forward sm_90a ") + tile);
    return cost_us(*spec, plan.value(), shape, device_facts(Target::kSm90a));
  };
  EXPECT_LT(cost("q16 k16 s3 w8 p2 cluster"), cost("q16 k16 s3 w4 p1"));
  EXPECT_LT(cost("q16 k16 s3 w8 p2 cluster"), cost("q16 k16 s3 w8 p8 cluster"));
}

TEST(DecodePlan, ClustersAreRefusedWhereTheyCannotBe) {
  const auto plan = parse_plan("decode forward sm_90a q16 k16 s3 w4 p8 cluster");
  AttentionSpec invariant = plain_spec();
  invariant.batch_invariant = true;
  EXPECT_FALSE(check_plan(invariant, *plan, kHopper).ok());
  const auto odd = parse_plan("decode forward sm_90a q16 k16 s3 w4 p16 cluster");
  EXPECT_FALSE(check_plan(plain_spec(), *odd, kHopper).ok());
  const auto older = parse_plan("decode forward sm_80 q16 k16 s3 w4 p8 cluster");
  EXPECT_FALSE(check_plan(plain_spec(), *older, device_facts(Target::kSm80)).ok());
}

// What decides in which order a row's keys are added up is the same in all of them.
TEST(DecodePlan, OfBatchInvariantSpecsPlansGiveTheSameBits) {
  AttentionSpec spec = plain_spec();
  spec.batch_invariant = true;
  const auto families = families_for(spec, Target::kSm90a);
  ASSERT_TRUE(families.ok());
  EXPECT_EQ(*families, (std::vector{Family::kSm90a, Family::kDecode}));
  const std::vector<KernelPlan> plans = legal_plans(spec, Family::kDecode, kHopper);
  EXPECT_GT(plans.size(), 1u);
  for (const KernelPlan& plan : plans) {
    const auto& tile = std::get<DecodePlan>(plan.tile);
    EXPECT_EQ(std::tuple(tile.step_keys, tile.warps, tile.pieces), std::tuple(16, 4, 1));
  }
  EXPECT_FALSE(check_plan(spec, plan_of(16, 4), kHopper).ok());
  EXPECT_FALSE(families_for(spec, Target::kSm90a, Pass::kBackward).ok());
  EXPECT_FALSE(families_for(spec, Target::kCpu, Pass::kBackward).ok());
}

// As many rows as registers have room for, and a list that decides how many pieces there are.
TEST(DecodePlan, OfSharedPrefixesItemsHaveTheRowsThatRegistersHold) {
  AttentionSpec spec = plain_spec();
  spec.layout = Layout::kPaged;
  spec.shared_prefixes = true;
  for (const auto& [dim, rows] : {std::pair{64, 32}, {128, 32}, {256, 16}}) {
    spec.head_dim_qk = spec.head_dim_v = dim;
    const std::vector<KernelPlan> plans = legal_plans(spec, Family::kDecode, kHopper);
    ASSERT_FALSE(plans.empty()) << dim;
    for (const KernelPlan& plan : plans) {
      EXPECT_EQ(std::get<DecodePlan>(plan.tile).tile_q, rows) << to_string(plan);
      EXPECT_EQ(launch_recipe(spec, plan).main().pieces, kSharedPieces);
    }
  }
}

TEST(DecodePlan, OfSharedPrefixesWhatIsPromisedCoversEveryPlanAndIsBounded) {
  AttentionSpec spec = plain_spec();
  spec.layout = Layout::kPaged;
  spec.shared_prefixes = true;
  const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
  for (const KernelPlan& plan : legal_plans(spec, Family::kDecode, kHopper)) {
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
    for (const std::int64_t batch : {1, 40, 5000}) {
      const ProblemShape shape{
          .batch = batch, .heads = 32, .kv_heads = 8, .q_len = batch, .kv_len = 1 << 20};
      EXPECT_GE(workspace_bytes(spec, promised, shape), bytes_of(spec, recipe, shape));
      EXPECT_LE(bytes_of(spec, recipe, shape), std::int64_t{100} << 20);
    }
  }
}

// The workspace of every plan follows from the shape and is bounded.
TEST(DecodePlan, OfBatchInvariantSpecsWhatIsPromisedCoversEveryPlan) {
  for (const Layout layout : {Layout::kBshd, Layout::kThd, Layout::kPaged}) {
    AttentionSpec spec = plain_spec();
    spec.batch_invariant = true;
    spec.layout = layout;
    const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
    for (const KernelPlan& plan : legal_plans(spec, Family::kDecode, kHopper)) {
      const LaunchRecipe recipe = launch_recipe(spec, plan);
      EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
      for (const std::int64_t keys : {1, 5000, 1 << 20}) {
        const ProblemShape shape{
            .batch = 3, .heads = 30, .kv_heads = 3, .q_len = 40, .kv_len = keys};
        EXPECT_GE(workspace_bytes(spec, promised, shape), bytes_of(spec, recipe, shape));
        EXPECT_LE(bytes_of(spec, recipe, shape),
                  std::int64_t{att::kMostFixedResults} * 32 * (spec.head_dim_v + 2) * 4 + 400'000);
      }
    }
  }
}

TEST(DecodePlan, LongSequencesNeedNoRoomForPieces) {
  const AttentionSpec spec = plain_spec();
  const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
  const ProblemShape shape{.batch = 2, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192};
  for (const WorkspaceRegion& region : promised) {
    if (region.content == Content::kPieceResults || region.content == Content::kPieceArrivals) {
      EXPECT_EQ(region_bytes(spec, region, shape), 0);
    }
  }
}

}  // namespace
}  // namespace attune
