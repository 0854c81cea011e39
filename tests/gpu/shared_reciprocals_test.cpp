// Kernels whose elements share reciprocals are found out when they share them wrongly.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/gpu/shared_reciprocal_faults.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kSpec = "name: t\ndtype: bf16\nhead_dim: 64\nscore: 30 * tanh(score / 30)\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1408, .kv_len = 1408};

// In each family's cheapest plan with frozen references, which alone share reciprocals, or of a
// backward pass.
void expect_found(const planted::Fault& fault, const std::string& yaml, Pass pass) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const AttentionSpec spec = spec_of(yaml);
  const auto plans = plans_by_cost(spec, kShape, bank.device().facts(), pass);
  ASSERT_TRUE(plans.ok()) << render(plans.error());
  int count = 0;
  for (const Family family : {Family::kSm90a, Family::kSm90aOrdered, Family::kSm80}) {
    const auto plan = std::ranges::find_if(*plans, [&](const KernelPlan& p) {
      return p.family() == family && (pass == Pass::kBackward || is_frozen(p));
    });
    if (plan == plans->end()) continue;
    ++count;
    EXPECT_TRUE(is_found(fault, spec, kShape, *plan));
  }
  EXPECT_GT(count, 0) << "nothing was planted";
}

TEST(SharedReciprocals, ExchangedSharesAreFound) {
  expect_found(planted::kExchangedShares, kSpec, Pass::kForward);
  expect_found(planted::kExchangedShares, kSpec, Pass::kBackward);
}

TEST(SharedReciprocals, DeadElementsThatCountAreFound) {
  expect_found(planted::kDeadWithAScore, std::string(kSpec) + "mask: sliding_window(400)\n",
               Pass::kForward);
}

}  // namespace
}  // namespace attune::gpu_test
