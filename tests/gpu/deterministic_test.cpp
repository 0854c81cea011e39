// `deterministic: true` by every family that has the backward pass: the same gradients to the bit
// at every launch, on any stream. turns_test.cpp has Hopper's own way of it over masks,
// learned_test.cpp what is learned. And the forward pass, where items are done again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/same_bits.hpp"
#include "tests/gpu/score_offsets.hpp"

namespace attune::gpu_test {
namespace {

// Several query heads a K/V head; one that fills the GPU, and one that runs beside it.
constexpr ProblemShape kBusy{.batch = 4, .heads = 16, .kv_heads = 4, .q_len = 600, .kv_len = 700};
constexpr ProblemShape kSmall{.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 290, .kv_len = 333};
constexpr ProblemShape kBeside[] = {kBusy, kSmall, kBusy, kSmall};
constexpr int kLaunches = 1000;

constexpr const char* kSpecs[] = {"dtype: bf16\nhead_dim: 64\nmask: causal",
                                  "dtype: fp16\nhead_dim: 128",
                                  "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal",
                                  "dtype: fp32\nhead_dim: 64\nmask: causal"};

class Deterministic : public testing::TestWithParam<const char*> {};

TEST_P(Deterministic, EveryLaunchGivesTheSameBits) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(fmt::format("name: t\ndeterministic: true\n{}\n", GetParam()));
  const BackwardPlans plans = cheapest_of_both_passes(spec, kBusy, bank.device().facts());
  ASSERT_FALSE(plans.backward.empty());
  bank.prepare(requests_of(spec, plans));
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  for (const KernelPlan& plan : plans.backward) {
    const auto backward = bank.get(spec, plan);
    ASSERT_TRUE(backward.ok()) << to_string(plan) << ": " << render(backward.error());
    const auto different = different_launches(spec, **forward, **backward, kBeside, kLaunches);
    ASSERT_TRUE(different.ok()) << to_string(plan) << ": " << render(different.error());
    EXPECT_EQ(*different, 0) << to_string(plan) << ", of " << kLaunches << " launches";
  }
}

// Items of three heads in four fail, which come to a CTA off a counter between those of the fourth.
TEST(DeterministicForward, DoesTheSameWhereItemsFail) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  constexpr ProblemShape shape{
      .batch = 3, .heads = 128, .kv_heads = 2, .q_len = 300, .kv_len = 400};
  for (const char* lines : {"head_dim: 128\nmask: causal", "head_dim: 64\nmask: causal"}) {
    const AttentionSpec spec =
        spec_of(fmt::format("name: t\ndtype: bf16\ndeterministic: true\n{}\n", lines));
    HostProblem problem = random_problem(spec, shape, 41);
    offset_scores(spec, problem, 200, beyond_in_three_of_four_heads);
    const auto plans = plans_of_families(spec, shape, bank.device().facts());
    EXPECT_TRUE(judge(spec, problem, plans, 20)) << lines;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, Deterministic, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
