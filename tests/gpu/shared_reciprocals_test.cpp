// Kernels whose elements share reciprocals are found out when they share them wrongly.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/gpu/shared_reciprocal_faults.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kSpec = "name: t\ndtype: bf16\nhead_dim: 64\nscore: 30 * tanh(score / 30)\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1408, .kv_len = 1408};

// In the cheapest plan of each family.
void expect_found(const planted::Fault& fault, const std::string& yaml, Pass pass,
                  std::vector<Family> families) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(yaml);
  const auto plans = plans_by_cost(spec, kShape, bank.device().facts(), pass);
  ASSERT_TRUE(plans.ok()) << render(plans.error());
  for (const Family family : families) {
    const auto plan = std::ranges::find(*plans, family, &KernelPlan::family);
    if (plan == plans->end()) continue;
    EXPECT_TRUE(is_found(fault, spec, kShape, *plan));
  }
}

TEST(SharedReciprocals, ExchangedSharesAreFound) {
  const std::vector<Family> all = {Family::kSm90a, Family::kSm90aOrdered, Family::kSm80};
  expect_found(planted::kExchangedShares, kSpec, Pass::kForward, all);
  expect_found(planted::kExchangedShares, kSpec, Pass::kBackward, all);
}

// Not of the sm80 family: its verification does not see this one.
TEST(SharedReciprocals, DeadElementsThatCountAreFound) {
  expect_found(planted::kDeadWithAScore, std::string(kSpec) + "mask: causal\n", Pass::kForward,
               {Family::kSm90a});
}

}  // namespace
}  // namespace attune::gpu_test
