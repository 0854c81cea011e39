// Kernels whose elements share reciprocals are found out when they share them wrongly.
#include <gtest/gtest.h>

#include <ranges>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/gpu/shared_reciprocal_faults.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kSpec =
    "name: t\ndtype: bf16\nhead_dim: 64\nmask: causal\nscore: 30 * tanh(score / 30)\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 700, .kv_len = 700};

class SharedReciprocals : public testing::TestWithParam<Pass> {};

TEST_P(SharedReciprocals, FaultsAreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(kSpec);
  const DeviceFacts& facts = bank.device().facts();
  const auto families = families_for(spec, facts.target, GetParam());
  ASSERT_TRUE(families.ok()) << render(families.error());
  const auto plans = plans_by_cost(spec, kShape, facts, GetParam());
  ASSERT_TRUE(plans.ok()) << render(plans.error());
  for (const Family family : *families) {
    if (family == Family::kDecode) continue;  // shares none
    const auto plan = std::ranges::find(*plans, family, &KernelPlan::family);
    ASSERT_NE(plan, plans->end()) << to_string(family);
    for (const planted::Fault& fault : planted::shared_reciprocal_faults(GetParam())) {
      EXPECT_TRUE(is_found(fault, spec, kShape, *plan)) << fault.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, SharedReciprocals,
                         testing::Values(Pass::kForward, Pass::kBackward),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace attune::gpu_test
