// The ordered queries' launch starts beside the last CTAs of the keys': it reads nothing that the
// launch of the rows has not yet left, and that it could is found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/judged_gradients.hpp"
#include "tests/gpu/same_bits.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::gpu_test {
namespace {

// Processors that the keys leave idle, and rows enough to take a while.
constexpr ProblemShape kShapes[] = {
    {.batch = 1, .heads = 64, .kv_heads = 64, .q_len = 1, .kv_len = 40},
    {.batch = 1, .heads = 40, .kv_heads = 2, .q_len = 3000, .kv_len = 70},
    {.batch = 2, .heads = 12, .kv_heads = 12, .q_len = 500, .kv_len = 500}};

constexpr const char* kSpecs[] = {"dtype: bf16\nhead_dim: 256", "dtype: fp16\nhead_dim: 128",
                                  "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal"};

class LaunchesAbreast : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const DeviceFacts& facts = bank.device().facts();
    plans_ = cheapest_of_both_passes(spec_, kShapes[2], facts);
    const auto all = plans_by_cost(spec_, kShapes[2], facts, Pass::kBackward);
    ASSERT_TRUE(all.ok()) << render(all.error());
    const auto ordered = std::ranges::find(*all, Family::kSm90aOrdered, &KernelPlan::family);
    if (ordered == all->end()) GTEST_SKIP() << "no ordered kernels";
    plans_.backward = {*ordered};
    bank.prepare(requests_of(spec_, plans_));
  }
  int different(const LoadedKernel& backward) const {
    const auto forward = KernelBank::instance().get(spec_, plans_.forward);
    if (!forward.ok()) return -1;
    constexpr int kLaunches = 300;
    const auto found = different_launches(spec_, **forward, backward, kShapes, kLaunches);
    EXPECT_TRUE(found.ok()) << render(found.error());
    return found.ok() ? *found : -1;
  }

  AttentionSpec spec_ = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  BackwardPlans plans_;
};

TEST_P(LaunchesAbreast, WaitForTheRows) {
  const auto backward = KernelBank::instance().get(spec_, plans_.backward.front());
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  EXPECT_EQ(different(**backward), 0);
}

TEST_P(LaunchesAbreast, KeysThatDoNotAreFound) {
  KernelBank& bank = KernelBank::instance();
  const KernelPlan& plan = plans_.backward.front();
  const auto* tile = std::get_if<Sm90aOrderedPlan>(&plan.tile);
  ASSERT_NE(tile, nullptr);
  const planted::Fault fault =
      tile->both_gradients
          ? planted::Fault{"the queries start before the keys have waited",
                           {{"if constexpr (kMakesQueries) let_next_launch_start();",
                             "let_next_launch_start();"}}}
          : planted::Fault{"the queries start before the keys have waited",
                           {{"  wait_for_launches_before();\n  let_next_launch_start();",
                             "  let_next_launch_start();\n  wait_for_launches_before();"}}};
  planted::EditingCompiler editing(bank.compiler(), fault);
  const auto built = build(spec_, plan, editing, nullptr);
  ASSERT_TRUE(built.ok()) << render(built.error());
  const auto kernel = bank.device().load(spec_, plan, built->code.image);
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  EXPECT_GT(different(**kernel), 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, LaunchesAbreast, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
