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

// All processors that the rows and the keys leave idle take queries.
constexpr ProblemShape kShapes[] = {
    {.batch = 1, .heads = 16, .kv_heads = 16, .q_len = 100, .kv_len = 40},
    {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 200, .kv_len = 60},
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
  // Launches that give other bits or NaN, of a kernel whose rows take 50 us, with `edits` besides.
  int different(std::vector<planted::Edit> edits) const {
    KernelBank& bank = KernelBank::instance();
    const KernelPlan& plan = plans_.backward.front();
    const std::string rows = "att::clear_learned_gradients(p);";
    edits.push_back({rows, "__nanosleep(50000); " + rows});
    planted::EditingCompiler editing(bank.compiler(), {"slow rows", std::move(edits)});
    const auto built = build(spec_, plan, editing, nullptr);
    EXPECT_TRUE(built.ok()) << render(built.error());
    if (!built.ok()) return -1;
    const auto backward = bank.device().load(spec_, plan, built->code.image);
    const auto forward = bank.get(spec_, plans_.forward);
    EXPECT_TRUE(backward.ok() && forward.ok());
    if (!backward.ok() || !forward.ok()) return -1;
    constexpr int kLaunches = 60;
    const auto found = different_launches(spec_, **forward, **backward, kShapes, kLaunches);
    if (found.ok()) return *found;
    EXPECT_EQ(found.error().message, "a gradient is NaN");  // of the first launch
    return kLaunches;
  }
  bool keeps_both_gradients() const {
    return std::get<Sm90aOrderedPlan>(plans_.backward.front().tile).both_gradients;
  }

  AttentionSpec spec_ = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  BackwardPlans plans_;
};

TEST_P(LaunchesAbreast, WaitForTheRows) { EXPECT_EQ(different({}), 0); }

TEST_P(LaunchesAbreast, KeysThatDoNotAreFound) {
  const planted::Edit early =
      keeps_both_gradients()
          ? planted::Edit{"if constexpr (kMakesQueries && !kStartsQueriesEarly) let_next_launch_start();",
                          "let_next_launch_start();"}
          : planted::Edit{"  wait_for_launches_before();\n  let_next_launch_start();",
                          "  let_next_launch_start();\n  wait_for_launches_before();"};
  EXPECT_GT(different({early}), 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, LaunchesAbreast, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
