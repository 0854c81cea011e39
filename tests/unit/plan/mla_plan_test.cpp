#include <gtest/gtest.h>

#include "generator/plan/plan.hpp"
#include "templates/work_items.h"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

const DeviceFacts kHopper = device_facts(Target::kSm90a);

AttentionSpec shared_spec() {
  AttentionSpec spec = plain_spec();
  spec.head_dim_qk = 576;
  spec.head_dim_v = 512;
  spec.v_in_k = true;
  return spec;
}

TEST(MlaPlan, ServesVInKAlone) {
  AttentionSpec spec = shared_spec();
  EXPECT_FALSE(legal_plans(spec, Family::kMla, kHopper).empty());
  EXPECT_TRUE(legal_plans(spec, Family::kMla, device_facts(Target::kCpu)).empty());
  spec.dropout.value = 0.25;
  EXPECT_TRUE(legal_plans(spec, Family::kMla, kHopper).empty());
  spec = shared_spec();
  spec.v_in_k = false;
  EXPECT_TRUE(legal_plans(spec, Family::kMla, kHopper).empty());
  spec = shared_spec();
  spec.head_dim_qk = 568;
  EXPECT_TRUE(legal_plans(spec, Family::kMla, kHopper).empty());
  spec = shared_spec();
  spec.batch_invariant = true;
  EXPECT_TRUE(legal_plans(spec, Family::kMla, kHopper).empty());
}

TEST(MlaPlan, ThereIsNoBackwardPass) {
  AttentionSpec spec = plain_spec();
  spec.v_in_k = true;
  for (const Target target : kTargets) {
    const auto families = families_for(spec, target, Pass::kBackward);
    ASSERT_FALSE(families.ok()) << to_string(target);
    EXPECT_NE(families.error().message.find("v_in_k"), std::string::npos) << to_string(target);
  }
}

// Wide heads fit processors of little shared memory, too; and on none another family has them.
TEST(MlaPlan, EveryGpuHasOne) {
  for (const Target target : kTargets) {
    if (target == Target::kCpu) continue;
    const auto families = families_for(shared_spec(), target);
    ASSERT_TRUE(families.ok()) << to_string(target);
    EXPECT_EQ(*families, std::vector{Family::kMla}) << to_string(target);
    EXPECT_FALSE(legal_plans(shared_spec(), Family::kMla, device_facts(target)).empty())
        << to_string(target);
  }
}

// What sequences share is in lists of the decode family; the mla family makes none beside them.
TEST(MlaPlan, SequencesThatShareAreTakenInStretches) {
  AttentionSpec spec = shared_spec();
  spec.layout = Layout::kPaged;
  spec.shared_prefixes = true;
  for (const Target target : {Target::kSm80, Target::kSm90a, Target::kSm100}) {
    const auto plans = legal_plans(spec, Family::kMla, device_facts(target));
    EXPECT_FALSE(plans.empty()) << to_string(target);
    for (const KernelPlan& plan : plans) {
      EXPECT_TRUE(std::get<MlaPlan>(plan.tile).stretches) << to_string(plan);
    }
  }
}

TEST(MlaPlan, RowsFollowTheHeads) {
  const auto rows = [](std::int64_t heads) {
    const ProblemShape shape{
        .batch = 128, .heads = heads, .kv_heads = 1, .q_len = 1, .kv_len = 4096};
    const auto plan = default_plan(shared_spec(), shape, kHopper);
    EXPECT_TRUE(plan.ok());
    return std::get<MlaPlan>(plan->tile).tile_q;
  };
  EXPECT_EQ(rows(16), 16);
  EXPECT_EQ(rows(64), 64);
  EXPECT_EQ(rows(128), 64);
}

// CTAs share what merging costs, so that it does not grow with their number.
TEST(MlaPlan, LongSequencesAreDealtToAllProcessorsOnce) {
  for (const std::int64_t heads : {16, 128}) {
    const ProblemShape shape{
        .batch = 1, .heads = heads, .kv_heads = 1, .q_len = 1, .kv_len = 131072};
    const auto plan = default_plan(shared_spec(), shape, kHopper);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(std::get<MlaPlan>(plan->tile).tile_q, heads == 16 ? 16 : 64) << to_string(*plan);
    const LaunchRecipe recipe = launch_recipe(shared_spec(), *plan);
    const std::int64_t pieces = item_count(shared_spec(), recipe, recipe.main(), shape);
    EXPECT_GE(pieces, kHopper.processor_count * 9 / 10) << to_string(*plan);
    EXPECT_LE(pieces, kHopper.processor_count) << to_string(*plan);
  }
}

TEST(MlaPlan, WhatIsPromisedCoversEveryPlan) {
  for (const Layout layout : {Layout::kBshd, Layout::kPaged}) {
    AttentionSpec spec = shared_spec();
    spec.layout = layout;
    const auto promised = widest_workspace(spec, Pass::kForward, Target::kSm90a);
    for (const KernelPlan& plan : legal_plans(spec, Family::kMla, kHopper)) {
      const LaunchRecipe recipe = launch_recipe(spec, plan);
      EXPECT_TRUE(covers(promised, recipe.workspace)) << to_string(plan);
      for (const std::int64_t queries : {1, 3, 17}) {
        const ProblemShape shape{
            .batch = 3, .heads = 48, .kv_heads = 1, .q_len = queries, .kv_len = 5000};
        EXPECT_GE(workspace_bytes(spec, promised, shape),
                  workspace_bytes(spec, recipe.workspace, shape))
            << to_string(plan) << ", " << queries << " queries";
      }
    }
  }
}

// CTAs take stretches of packed sequences, whose lengths no shape says.
TEST(MlaPlan, PackedSequencesAreTakenInStretches) {
  for (const Layout layout : {Layout::kThd, Layout::kPaged}) {
    AttentionSpec spec = shared_spec();
    spec.layout = layout;
    for (const std::int64_t heads : {16, 128}) {
      const std::int64_t keys = layout == Layout::kPaged ? 8192 : 64 * 4600;
      const ProblemShape shape{
          .batch = 64, .heads = heads, .kv_heads = 1, .q_len = 64, .kv_len = keys};
      const auto plan = default_plan(spec, shape, kHopper);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      EXPECT_TRUE(std::get<MlaPlan>(plan->tile).stretches) << to_string(*plan);
      const LaunchRecipe recipe = launch_recipe(spec, *plan);
      EXPECT_EQ(recipe.main().item, WorkItem::kStretch);
      EXPECT_TRUE(recipe.main().persistent);
      // Copies do without the tensor unit where it cannot walk the strides.
      EXPECT_FALSE(recipe.needs_tensor_maps());
    }
  }
}

TEST(MlaPlan, StretchesAreRefusedWhereTheyCannotBe) {
  AttentionSpec packed = shared_spec();
  packed.layout = Layout::kThd;
  const auto plan = parse_plan("mla forward sm_90a q64 k64 s2 w8 p16 stretches");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_EQ(to_string(*plan), "mla forward sm_90a q64 k64 s2 w8 p16 stretches");
  EXPECT_TRUE(check_plan(packed, *plan, kHopper).ok());
  EXPECT_FALSE(check_plan(shared_spec(), *plan, kHopper).ok());
  // The compiler would spill.
  const auto wide = parse_plan("mla forward sm_90a q32 k64 s3 w8 p16 stretches");
  ASSERT_TRUE(wide.ok()) << render(wide.error());
  EXPECT_FALSE(check_plan(packed, *wide, kHopper).ok());
}

// 64 rows are Hopper's, and have one tile.
TEST(MlaPlan, OtherTilesOf64RowsAreRefused) {
  for (const char* text :
       {"mla forward sm_80 q64 k64 s2 w8 p1", "mla forward sm_90a q64 k32 s2 w8 p1",
        "mla forward sm_90a q64 k64 s3 w8 p1", "mla forward sm_90a q64 k64 s2 w4 p1",
        "mla forward sm_90a q48 k64 s2 w8 p1"}) {
    const auto plan = parse_plan(text);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    EXPECT_FALSE(check_plan(shared_spec(), *plan, device_facts(plan->target)).ok()) << text;
  }
}

}  // namespace
}  // namespace attune
