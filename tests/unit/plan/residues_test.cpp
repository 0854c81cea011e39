// Plans that take sequences apart: what they are of, when they are chosen, and what room they have.
#include "generator/spec/residues.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "generator/emit/emit.hpp"
#include "generator/plan/plan.hpp"

namespace attune {
namespace {

AttentionSpec spec_of(const std::string& lines) {
  const auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n" + lines, "t.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? *spec : AttentionSpec{};
}

constexpr ProblemShape kMultiple{
    .batch = 2, .heads = 4, .kv_heads = 4, .q_len = 4096, .kv_len = 8192};
constexpr ProblemShape kOdd{.batch = 2, .heads = 4, .kv_heads = 4, .q_len = 4097, .kv_len = 8192};

TEST(Residues, AreOfMasksAloneThatNothingElseTiesToWholeSequences) {
  EXPECT_EQ(residue_count(spec_of("mask: dilated(8)"), Pass::kForward), 8);
  EXPECT_EQ(residue_count(spec_of("mask: causal"), Pass::kForward), 1);
  EXPECT_EQ(residue_count(spec_of("mask: dilated(8)\nlayout: thd"), Pass::kForward), 1);
  EXPECT_EQ(residue_count(spec_of("mask: dilated(8)\ndropout: 0.1"), Pass::kForward), 1);
  const auto along = spec_of(
      "mask: dilated(8) and doc[b, kv_idx] == 0\n"
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}");
  EXPECT_EQ(residue_count(along, Pass::kForward), 1);
  const auto learned = spec_of(
      "mask: dilated(8)\nscore: score + slope[h]\n"
      "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}");
  EXPECT_EQ(residue_count(learned, Pass::kForward), 8);
  EXPECT_EQ(residue_count(learned, Pass::kBackward), 1);
}

TEST(Residues, PlansAreChosenWhereLengthsAreMultiples) {
  const AttentionSpec spec = spec_of("mask: dilated(8)");
  for (const Target target : {Target::kSm80, Target::kSm90a, Target::kCpu}) {
    const DeviceFacts facts = device_facts(target);
    for (const Pass pass : kPasses) {
      const auto plan = default_plan(spec, kMultiple, facts, pass);
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      EXPECT_EQ(plan->residues, 8);
      EXPECT_EQ(*plan, plans_by_cost(spec, kMultiple, facts, pass)->front());
      EXPECT_EQ(default_plan(spec, kOdd, facts, pass)->residues, 1);
      EXPECT_EQ(plan_for_any_length(spec, pass, kMultiple, facts)->residues, 1);
      const auto odd = plans_by_cost(spec, kOdd, facts, pass);
      EXPECT_TRUE(std::ranges::all_of(*odd, [](const KernelPlan& p) { return p.residues == 1; }));
    }
  }
}

TEST(Residues, PlansHaveTextsOfTheirOwnAndKernelsOfOneResidue) {
  const AttentionSpec spec = spec_of("mask: dilated(8)");
  const DeviceFacts facts = device_facts(Target::kSm90a);
  const KernelPlan plan = *default_plan(spec, kMultiple, facts);
  const std::string text = to_string(plan);
  EXPECT_NE(text.find(" residues8 "), std::string::npos) << text;
  EXPECT_EQ(parse_plan(text).value(), plan);
  KernelPlan whole = plan;
  whole.residues = 1;
  EXPECT_NE(launch_recipe(spec, plan).symbol, launch_recipe(spec, whole).symbol);
  const auto kernel = emit(spec, plan);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_NE(kernel->source.find("constexpr int kResidues = 8;"), std::string::npos);
  EXPECT_EQ(worked_shape(kMultiple, plan),
            (ProblemShape{.batch = 16, .heads = 4, .kv_heads = 4, .q_len = 512, .kv_len = 1024}));
}

TEST(Residues, OthersThanTheMasksAreRefused) {
  KernelPlan plan =
      *default_plan(spec_of("mask: dilated(8)"), kMultiple, device_facts(Target::kSm80));
  for (const char* mask : {"mask: causal", "mask: dilated(4)"}) {
    EXPECT_FALSE(check_plan(spec_of(mask), plan, device_facts(Target::kSm80)).ok());
    EXPECT_FALSE(emit(spec_of(mask), plan).ok());
    // A cache file may say anything.
    EXPECT_GT(cost_us(spec_of(mask), plan, kMultiple, device_facts(Target::kSm80)), 0);
    EXPECT_FALSE(launch_recipe(spec_of(mask), plan).launches.empty());
  }
}

}  // namespace
}  // namespace attune
