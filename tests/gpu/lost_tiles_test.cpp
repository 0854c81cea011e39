// Plans of the sm80 family with frozen references on scores that rise, halfway along the keys, by
// more than these have room for: what was lost is made up for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/lost_tile_faults.hpp"
#include "tests/gpu/planting.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1408, .kv_len = 1408};

struct Case {
  const char* name;
  const char* lines;  // of the spec
};
constexpr Case kCases[] = {
    {"Full64", "dtype: bf16\nhead_dim: 64\n"},
    {"Causal64", "dtype: fp16\nhead_dim: 64\nmask: causal\n"},
    {"Full128", "dtype: fp16\nhead_dim: 128\n"},
    {"Causal128", "dtype: bf16\nhead_dim: 128\nmask: causal\n"},
    {"Documents128",
     "dtype: bf16\nhead_dim: 128\ntensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: "
     "segments(mean=700)}}\nmask: document(doc)\n"},
    {"Dropout128", "dtype: bf16\nhead_dim: 128\nmask: causal\ndropout: 0.2\n"},
    {"Full256", "dtype: bf16\nhead_dim: 256\n"},
};

class LostTiles : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    spec_ = spec_of(fmt::format("name: t\n{}{}", GetParam().lines, planted::kRisingScore));
    const auto plans = plans_by_cost(spec_, kShape, bank.device().facts());
    ASSERT_TRUE(plans.ok()) << render(plans.error());
    const auto plan = std::ranges::find_if(
        *plans, [](const KernelPlan& p) { return p.family() == Family::kSm80 && is_frozen(p); });
    ASSERT_NE(plan, plans->end());
    plan_ = *plan;
  }
  AttentionSpec spec_;
  KernelPlan plan_;
};

TEST_P(LostTiles, AreMadeUpFor) {
  KernelBank::instance().prepare({{spec_, plan_}});
  EXPECT_TRUE(judge(spec_, random_problem(spec_, kShape, 3), {plan_}));
}

TEST_P(LostTiles, FaultsAreSeen) {
  EXPECT_TRUE(is_found(planted::kLostForGood, spec_, kShape, plan_));
}

INSTANTIATE_TEST_SUITE_P(Specs, LostTiles, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
