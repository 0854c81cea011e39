// Launches of Hopper's backward pass: which CTAs take key tiles off a counter, which heads have
// sums of dQ, and which rows the main launch makes itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "generator/plan/launch.hpp"
#include "generator/plan/plan.hpp"
#include "generator/plan/promised_workspace.hpp"
#include "generator/spec/spec.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

// CTAs of Hopper's backward pass that take key tiles off a counter: as many as there are
// processors.
TEST(HopperBackwardLaunch, KeyTilesMayBeTakenOffACounter) {
  const ProblemShape shape{.batch = 16, .heads = 32, .kv_heads = 32, .q_len = 1024, .kv_len = 1024};
  const auto counts = [](const LaunchRecipe& recipe) {
    return std::ranges::count(recipe.workspace, WorkspaceRegion::Content::kSchedulerCounter,
                              &WorkspaceRegion::content);
  };
  const auto grid = [&](const LaunchRecipe& recipe) {
    const Launch& launch = recipe.launches[1];
    return grid_size(launch, item_count(plain_spec(64), recipe, launch, shape), 132).value();
  };
  const auto recipe_of = [](const char* text) {
    return launch_recipe(plain_spec(64), parse_plan(text).value());
  };
  const LaunchRecipe one_each = recipe_of("sm90a backward sm_90a w2 q64 s3 kreg");
  EXPECT_EQ(counts(one_each), 0);
  EXPECT_EQ(grid(one_each), 16u * 32 * 8);
  const LaunchRecipe taken = recipe_of("sm90a backward sm_90a w2 q64 s3 kreg counter");
  EXPECT_EQ(counts(taken), 1);
  EXPECT_EQ(grid(taken), 132u);
}

// Wide heads that come off the counter all have sums of dQ, and a later launch brings all to rows.
TEST(HopperBackwardLaunch, AllWideHeadsOffACounterHaveSums) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")
          .value();
  const ProblemShape shape{.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  const auto recipe_of = [&](const char* text) {
    return launch_recipe(spec, parse_plan(text).value());
  };
  const LaunchRecipe taken = recipe_of("sm90a backward sm_90a w2 q64 s2 counter");
  const LaunchRecipe one_each = recipe_of("sm90a backward sm_90a w2 q64 s2");
  EXPECT_EQ(item_count(spec, taken, taken.launches[2], shape), 4 * 16 * 64);
  EXPECT_LT(item_count(spec, one_each, one_each.launches[2], shape), 4 * 16 * 64);
  EXPECT_GE(workspace_bytes(spec, taken.workspace, shape), 4ll * 16 * 4096 * 128 * 4);
  EXPECT_TRUE(covers(taken.workspace, one_each.workspace));
  EXPECT_FALSE(covers(one_each.workspace, taken.workspace));
  const auto widest = widest_workspace(spec, Pass::kBackward, Target::kSm90a);
  EXPECT_TRUE(covers(widest, taken.workspace));
  EXPECT_TRUE(covers(widest, one_each.workspace));
}

// A kernel has room for them if it begins with such a plan, or one is nearly the fastest.
TEST(HopperBackwardLaunch, SumsOfAllHeadsArePromisedWhereTheyMayCome) {
  const AttentionSpec spec =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n", "t.yaml").value();
  const KernelPlan apart = parse_plan("sm90a backward sm_90a w2 q64 s3 kreg counter apart").value();
  const KernelPlan in_turn = parse_plan("sm90a backward sm_90a w2 q64 s3 kreg").value();
  const auto shape_of = [](std::int64_t length) {
    return ProblemShape{
        .batch = 16384 / length, .heads = 32, .kv_heads = 32, .q_len = length, .kv_len = length};
  };
  const auto room_of = [&](const KernelPlan& first, std::int64_t length) {
    return promised_workspace(spec, first, shape_of(length), device_facts(Target::kSm90a));
  };
  const auto needed = launch_recipe(spec, apart).workspace;
  EXPECT_TRUE(covers(room_of(apart, 16384), needed));
  EXPECT_TRUE(covers(room_of(in_turn, 512), needed));
  EXPECT_FALSE(covers(room_of(in_turn, 16384), needed));
  EXPECT_LT(workspace_bytes(spec, room_of(in_turn, 16384), shape_of(16384)),
            workspace_bytes(spec, needed, shape_of(16384)) / 2);
  for (const KernelPlan& plan :
       legal_plans(spec, Family::kSm90a, device_facts(Target::kSm90a), Pass::kBackward)) {
    const auto regions = launch_recipe(spec, plan).workspace;
    EXPECT_TRUE(covers(room_of(plan, 16384), regions)) << to_string(plan);
    EXPECT_TRUE(covers(room_of(in_turn, 16384), regions) || covers(regions, needed))
        << to_string(plan);
  }
}

// A cache file may name a plan that may be run and is not offered, or not any more: what a kernel
// begins with it has room for.
TEST(HopperBackwardLaunch, WhatAKernelBeginsWithIsPromisedIfNobodyOffersIt) {
  const DeviceFacts device = device_facts(Target::kSm90a);
  const ProblemShape shape{
      .batch = 2, .heads = 32, .kv_heads = 32, .q_len = 16384, .kv_len = 16384};
  const auto spec_of = [](const char* head_dim) {
    const std::string text = "attune: 1\nname: t\ndtype: bf16\nmask: causal\nhead_dim: ";
    return parse_spec(text + head_dim + "\n", "t.yaml").value();
  };
  const auto expect_room = [&](const AttentionSpec& spec, const char* text) {
    const KernelPlan plan = parse_plan(text).value();
    ASSERT_TRUE(check_plan(spec, plan, device).ok()) << text;
    const auto offered = legal_plans(spec, plan.family(), device, Pass::kBackward);
    EXPECT_EQ(std::ranges::count(offered, plan), 0) << text;
    EXPECT_TRUE(
        covers(promised_workspace(spec, plan, shape, device), launch_recipe(spec, plan).workspace))
        << text;
  };
  expect_room(spec_of("64"), "sm90a backward sm_90a w2 q64 s4 counter apart");
  expect_room(spec_of("64"), "sm80 backward sm_90a w4 t32 s2 sums");
  expect_room(spec_of("256"), "sm80 backward sm_90a w8 t64 s2 sums fours");
}

// Sums of all heads are promised where a kernel begins with a plan that has them, once, and for
// nothing elsewhere.
TEST(HopperBackwardLaunch, WideHeadsHaveRoomForSumsWhereTheyUseThem) {
  const DeviceFacts device = device_facts(Target::kSm90a);
  const ProblemShape shape{.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};
  const AttentionSpec spec = plain_spec(192);
  const KernelPlan wide = parse_plan("sm90a_wide backward sm_90a k80 s2").value();
  const KernelPlan ordered = parse_plan("sm90a_ordered backward sm_90a q64 k64 s3").value();
  const auto sums = [&](const KernelPlan& first) {
    return std::ranges::count(promised_workspace(spec, first, shape, device),
                              WorkspaceRegion::Content::kQuerySums, &WorkspaceRegion::content);
  };
  EXPECT_EQ(sums(wide), 1);
  EXPECT_EQ(sums(ordered), 0);
  const auto needed = launch_recipe(spec, wide).workspace;
  EXPECT_TRUE(covers(needed, needed));
  EXPECT_TRUE(covers(promised_workspace(spec, wide, shape, device), needed));
}

// Hopper's backward pass: the main launch makes rows of heads that come later, not those of the
// first wave of CTAs, and none under a mask that leaves short heads' CTAs no time for it.
TEST(HopperBackwardLaunch, TheFirstHeadsHaveTheirRowsBeforeTheMainLaunch) {
  AttentionSpec spec = plain_spec(128);
  const KernelPlan plan = parse_plan("sm90a backward sm_90a w2 q64 s2").value();
  const auto rows = [&](const ProblemShape& shape) {
    const LaunchRecipe recipe = launch_recipe(spec, plan);
    return item_count(spec, recipe, recipe.launches[0], shape);
  };
  const ProblemShape shape{.batch = 16, .heads = 16, .kv_heads = 16, .q_len = 1024, .kv_len = 1024};
  EXPECT_EQ(rows(shape), 2 * 18 * 8) << "17 heads of 8 key tiles fill 132 processors";
  ProblemShape grouped = shape;
  grouped.heads = 64;
  EXPECT_EQ(rows(grouped), 2 * 18 * 4 * 8);
  ProblemShape few = shape;
  few.batch = 2;
  EXPECT_EQ(rows(few), 32 * 8) << "all";
  ProblemShape narrow = shape;
  narrow.kv_len = 900;
  EXPECT_EQ(rows(narrow), 2 * 18 * 8);
  narrow.kv_len = 896;
  EXPECT_EQ(rows(narrow), 256 * 8) << "heads of 7 tiles";
  spec.mask =
      parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n", "t.yaml")->mask;
  EXPECT_EQ(rows(shape), 256 * 8) << "heads of 8 tiles";
  ProblemShape longer = shape;
  longer.kv_len = 2048;
  EXPECT_EQ(rows(longer), 2 * 17 * 8);
  spec.mask = nullptr;
  spec.deterministic = true;
  EXPECT_EQ(rows(shape), 256 * 8) << "the warps wait for turns";
}

}  // namespace
}  // namespace attune
