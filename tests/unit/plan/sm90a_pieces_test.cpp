// Plans of the Hopper family that cut an item's keys in pieces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "generator/plan/family.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/spec.hpp"
#include "templates/work_items.h"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

const DeviceFacts kHopper = device_facts(Target::kSm90a);

KernelPlan plan_of(const char* tile) {
  return parse_plan(fmt::format("sm90a forward sm_90a {}", tile)).value();
}

AttentionSpec spec_of(const std::string& lines) {
  return parse_spec("attune: 1\nname: t\ndtype: bf16\n" + lines + "\n", "").value();
}

int pieces_of(const KernelPlan& plan) {
  const auto* tile = std::get_if<Sm90aPlan>(&plan.tile);
  return tile != nullptr ? tile->pieces : 0;
}

TEST(Sm90aPieces, TextRoundTrips) {
  const char* text = "sm90a forward sm_90a w2 k64 s3 b1 c1 single g1 frozen tma heads p6";
  const auto plan = parse_plan(text);
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_EQ(pieces_of(*plan), 6);
  EXPECT_EQ(to_string(*plan), text);
  EXPECT_FALSE(parse_plan("sm90a forward sm_90a w2 k64 s3 b1 c1 single g1 frozen tma p1").ok());
}

// As many CTAs as the plan wants, but results are of no more rows than there is room for.
TEST(Sm90aPieces, AGridHasThemAndTheWorkspaceRoomForThem) {
  const AttentionSpec spec = plain_spec(128);
  const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
  for (const char* tile : {"w1 k128 s2 b2 c1 single g1 frozen tma p16",
                           "w2 k64 s3 b1 c1 single g1 frozen tma heads p4",
                           "w3 k64 s3 b1 c1 single g1 frozen tma p3"}) {
    const KernelPlan plan = plan_of(tile);
    ASSERT_TRUE(check_plan(spec, plan, kHopper).ok());
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    EXPECT_TRUE(covers(promised, recipe.workspace));
    const std::string text = tile;
    const LaunchRecipe whole =
        launch_recipe(spec, plan_of(text.substr(0, text.rfind(" p")).c_str()));
    const int rows = 64 * std::get<Sm90aPlan>(plan.tile).warpgroups;
    for (const auto& [batch, q_len] : {std::pair{1, 1}, {1, 100}, {3, 700}, {16, 4096}}) {
      const ProblemShape shape{
          .batch = batch, .heads = 8, .kv_heads = 2, .q_len = q_len, .kv_len = 5000};
      const std::int64_t items = item_count(spec, whole, whole.main(), shape);
      const std::int64_t ctas = item_count(spec, recipe, recipe.main(), shape);
      EXPECT_EQ(ctas % items, 0);
      EXPECT_LE(ctas / items, pieces_of(plan));
      if (ctas == items) continue;
      EXPECT_LE(ctas * rows, att::kMostKeyRows);
      EXPECT_GE(workspace_bytes(spec, recipe.workspace, shape), ctas * rows * (128 + 8) * 4);
    }
  }
}

TEST(Sm90aPieces, FewQueryTilesOnManyKeysAreCutAndManyAreNot) {
  for (const char* mask : {"", "\nmask: causal"}) {
    const AttentionSpec spec = spec_of(fmt::format("head_dim: 80{}", mask));
    const auto few = default_plan(
        spec, {.batch = 1, .heads = 32, .kv_heads = 32, .q_len = 128, .kv_len = 28268}, kHopper);
    ASSERT_TRUE(few.ok());
    EXPECT_GT(pieces_of(*few), 1) << to_string(*few);
    const auto many = default_plan(
        spec, {.batch = 2, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192}, kHopper);
    ASSERT_TRUE(many.ok());
    EXPECT_EQ(pieces_of(*many), 1) << to_string(*many);
  }
}

// Where all processors draw rows that begin amid a line, copies of several tiles must be under way.
TEST(Sm90aPieces, CopiesAreUnderWayWhileATileIsComputed) {
  const AttentionSpec spec = spec_of("layout: thd\nhead_dim: 80\nmask: causal");
  const auto plan = default_plan(
      spec, {.batch = 1, .heads = 32, .kv_heads = 32, .q_len = 128, .kv_len = 28268}, kHopper);
  ASSERT_TRUE(plan.ok());
  ASSERT_GT(pieces_of(*plan), 1) << to_string(*plan);
  const auto& tile = std::get<Sm90aPlan>(plan->tile);
  EXPECT_GE((tile.stages - 1) * tile.tile_kv, 192) << to_string(*plan);
}

TEST(Sm90aPieces, ABatchInvariantSpecHasNone) {
  const AttentionSpec spec = spec_of("head_dim: 128\nbatch_invariant: true");
  const auto plans = legal_plans(spec, Family::kSm90a, kHopper);
  ASSERT_FALSE(plans.empty());
  EXPECT_TRUE(std::ranges::all_of(plans, [](const KernelPlan& p) { return pieces_of(p) == 1; }));
  EXPECT_TRUE(check_plan(spec, plan_of("w2 k64 s2 b1 c1 longest g16"), kHopper).ok());
  EXPECT_FALSE(check_plan(spec, plan_of("w2 k64 s2 b1 c1 longest g16 p4"), kHopper).ok());
}

// Whatever lengths a launch has, results lie in the room that its shape has for them.
TEST(Sm90aPieces, PackedSequencesWithoutRoomForResultsAreNotCut) {
  const AttentionSpec spec = spec_of("layout: thd\nhead_dim: 64");
  const LaunchRecipe recipe =
      launch_recipe(spec, plan_of("w2 k64 s3 b1 c1 longest g32 frozen tma p16"));
  for (const int q_len : {1, 64, 6336, 6337, 20000}) {
    const ProblemShape shape{
        .batch = 4, .heads = 32, .kv_heads = 8, .q_len = q_len, .kv_len = 50000};
    const std::int64_t bytes = workspace_bytes(spec, recipe.workspace, shape);
    const std::int64_t results_bytes = std::int64_t{att::kMostKeyRows} * (64 + 8) * 4;
    EXPECT_EQ(bytes >= results_bytes, att::may_cut_listed(shape.heads, q_len)) << q_len;
  }
}

// How many pieces packed sequences have no grid knows before their lengths.
TEST(Sm90aPieces, PackedSequencesAreTakenOffACounter) {
  const AttentionSpec spec = spec_of("layout: thd\nhead_dim: 64");
  EXPECT_TRUE(
      check_plan(spec, plan_of("w2 k64 s3 b1 c1 longest g32 frozen tma p16"), kHopper).ok());
  EXPECT_FALSE(check_plan(spec, plan_of("w2 k64 s3 b1 c1 single g1 frozen tma p16"), kHopper).ok());
  const LaunchRecipe recipe =
      launch_recipe(spec, plan_of("w2 k64 s3 b1 c1 longest g32 frozen tma p16"));
  ASSERT_EQ(recipe.launches.size(), 2u);
  EXPECT_TRUE(recipe.main().overlaps_previous);
  // Which zeroes counters, too.
  for (const Launch& launch : recipe.launches) EXPECT_TRUE(launch.zeroed.empty());
}

}  // namespace
}  // namespace attune
