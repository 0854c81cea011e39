// Plans that work out runs: what they are of, when they are chosen, and what room they have.
#include <gtest/gtest.h>

#include <algorithm>

#include "generator/emit/emit.hpp"
#include "generator/plan/plan.hpp"
#include "generator/spec/run_spec.hpp"

namespace attune {
namespace {

AttentionSpec spec_of(const std::string& lines) {
  const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n" + lines, "t.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? *spec : AttentionSpec{};
}

constexpr const char* kDocuments =
    "mask: causal and document(doc)\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n";
constexpr ProblemShape kLong{.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 4096, .kv_len = 4096};
constexpr ProblemShape kFewQueries{
    .batch = 1, .heads = 32, .kv_heads = 32, .q_len = 512, .kv_len = 65536};
constexpr ProblemShape kShort{.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 512, .kv_len = 512};

TEST(Runs, AreOfWholeSequences) {
  EXPECT_TRUE(has_runs(spec_of(kDocuments)));
  EXPECT_FALSE(has_runs(spec_of("mask: causal")));
  EXPECT_FALSE(has_runs(spec_of(std::string(kDocuments) + "batch_invariant: true")));
  EXPECT_FALSE(
      has_runs(spec_of("layout: thd\nmask: doc[q_idx] == doc[kv_idx]\n"
                       "tensors: {doc: {dtype: int32, dims: [kv_len]}}")));
  EXPECT_FALSE(has_runs(run_spec(spec_of(kDocuments), expr::RunsOf::kQuery)));
}

TEST(Runs, PlansAreChosenOnHopperWhereSequencesAreLong) {
  const AttentionSpec spec = spec_of(kDocuments);
  for (const Target target : {Target::kSm80, Target::kSm90a, Target::kCpu}) {
    const DeviceFacts facts = device_facts(target);
    for (const Pass pass : kPasses) {
      const auto plan = default_plan(spec, kLong, facts, pass);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      EXPECT_EQ(plan->by_runs, target == Target::kSm90a);
      EXPECT_EQ(*plan, plans_by_cost(spec, kLong, facts, pass)->front());
      EXPECT_FALSE(default_plan(spec, kShort, facts, pass)->by_runs);
      EXPECT_FALSE(default_plan(spec, kFewQueries, facts, pass)->by_runs);
    }
  }
}

TEST(Runs, PlansHaveTextsOfTheirOwnAndRoom) {
  const AttentionSpec spec = spec_of(kDocuments);
  const DeviceFacts facts = device_facts(Target::kSm90a);
  for (const Pass pass : kPasses) {
    const KernelPlan plan = *default_plan(spec, kLong, facts, pass);
    const std::string text = to_string(plan);
    EXPECT_NE(text.find(" runs "), std::string::npos) << text;
    EXPECT_EQ(parse_plan(text).value(), plan);
    EXPECT_TRUE(check_plan(spec, plan, facts).ok());
    KernelPlan plain = plan;
    plain.by_runs = false;
    const LaunchRecipe recipe = launch_recipe(spec, plan), without = launch_recipe(spec, plain);
    ASSERT_EQ(recipe.launches.size(), without.launches.size());
    const AttentionSpec worked = worked_spec(spec, plan);
    // Of two rows the runs, and 2 x 64 blocks, 32 a CTA.
    EXPECT_EQ(item_count(worked, recipe, recipe.launches.front(), kLong), 2 + 4);
    // Where runs begin and end.
    EXPECT_EQ(workspace_bytes(worked, recipe.workspace, kLong),
              workspace_bytes(spec, without.workspace, kLong) + 2 * (2 * 4096 * 4));
    EXPECT_TRUE(covers(widest_workspace(worked, pass, Target::kSm90a), recipe.workspace));
    const auto kernel = emit(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    EXPECT_EQ(kernel->symbol, recipe.symbol);
    EXPECT_NE(kernel->source.find("constexpr bool kHasRuns = true;"), std::string::npos);
  }
}

TEST(Runs, AreRefusedWhereThereAreNone) {
  KernelPlan plan = *default_plan(spec_of(kDocuments), kLong, device_facts(Target::kSm90a));
  const AttentionSpec causal = spec_of("mask: causal");
  EXPECT_FALSE(check_plan(causal, plan, device_facts(Target::kSm90a)).ok());
  EXPECT_FALSE(emit(causal, plan).ok());
  // A cache file may say anything.
  EXPECT_GT(cost_us(causal, plan, kLong, device_facts(Target::kSm90a)), 0);
  EXPECT_FALSE(launch_recipe(causal, plan).launches.empty());
}

}  // namespace
}  // namespace attune
