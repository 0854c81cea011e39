// The plans of `accuracy: strict`: whose largest exponentials are exact, and some on every target.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "generator/plan/family.hpp"
#include "generator/plan/plan.hpp"
#include "tests/unit/plan/plain_spec.hpp"

namespace attune {
namespace {

constexpr ProblemShape kShape{
    .batch = 2, .heads = 16, .kv_heads = 16, .q_len = 4096, .kv_len = 4096};

AttentionSpec strict_spec(int head_dim) {
  AttentionSpec spec = plain_spec(head_dim);
  spec.accuracy = Accuracy::kStrict;
  return spec;
}

// Null where the family always has a running maximum.
const bool* frozen_max(const KernelPlan& plan) {
  if (const auto* tile = std::get_if<Sm90aPlan>(&plan.tile)) return &tile->frozen_max;
  if (const auto* tile = std::get_if<Sm80Plan>(&plan.tile)) return &tile->frozen_max;
  return nullptr;
}

TEST(StrictPlan, HasARunningMaximum) {
  for (const int head_dim : {16, 64, 80, 128, 192, 256}) {
    for (const auto& [family, target] : {std::pair{Family::kSm90a, Target::kSm90a},
                                         {Family::kSm80, Target::kSm80},
                                         {Family::kSm80, Target::kSm86},
                                         {Family::kSm80, Target::kSm90a}}) {
      const auto plans = legal_plans(strict_spec(head_dim), family, device_facts(target));
      EXPECT_FALSE(plans.empty()) << head_dim << ' ' << to_string(target);
      for (const KernelPlan& plan : plans) EXPECT_FALSE(*frozen_max(plan)) << to_string(plan);
    }
  }
}

// Of scores whose growth has no other reference, as the search for a row's largest score makes
// them.
TEST(StrictPlan, SteepScoresHaveARunningMaximum) {
  const auto plans_of = [](const char* score) {
    const auto spec = parse_spec(
        fmt::format("attune: 1\nname: s\ndtype: bf16\nhead_dim: {{qk: 128, v: 16}}\nscore: {}\n",
                    score),
        "s.yaml");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    auto plans = legal_plans(*spec, Family::kSm90a, device_facts(Target::kSm90a));
    const auto others = legal_plans(*spec, Family::kSm80, device_facts(Target::kSm90a));
    plans.insert(plans.end(), others.begin(), others.end());
    EXPECT_FALSE(plans.empty()) << score;
    return std::ranges::count_if(plans, [](const KernelPlan& plan) { return *frozen_max(plan); });
  };
  EXPECT_EQ(plans_of("score * 16777216.0"), 0);
  EXPECT_EQ(plans_of("(score + 0.1 * (kv_idx - q_idx)) * 16777216.0"), 0);
  EXPECT_GT(plans_of("score * 16.0"), 0);
}

TEST(StrictPlan, RefusesAFrozenOne) {
  for (const char* text : {"sm90a forward sm_90a w2 k128 s2 b2 c1 longest g16 frozen tma",
                           "sm80 forward sm_90a q128 k64 s2 w4 c32 u1 frozen"}) {
    const auto plan = parse_plan(text);
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    const DeviceFacts device = device_facts(Target::kSm90a);
    EXPECT_TRUE(check_plan(plain_spec(), *plan, device).ok()) << text;
    const Status refused = check_plan(strict_spec(128), *plan, device);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.error().id, "plan-unsupported");
  }
}

// Of fast specs a running maximum is the way out, and what its plans take turns with is not tried.
TEST(StrictPlan, TakesTurnsToo) {
  const auto taking_turns = [](const AttentionSpec& spec) {
    int count = 0;
    for (const KernelPlan& plan : legal_plans(spec, Family::kSm90a, device_facts(Target::kSm90a))) {
      const auto& tile = std::get<Sm90aPlan>(plan.tile);
      count += tile.ping_pong && !tile.frozen_max ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(taking_turns(strict_spec(128)), 0);
  EXPECT_EQ(taking_turns(plain_spec()), 0);
}

TEST(StrictPlan, EveryTargetHasOne) {
  for (const Target target : kTargets) {
    for (const DType dtype : {DType::kF16, DType::kBf16}) {
      AttentionSpec spec = strict_spec(128);
      spec.dtype = dtype;
      const auto plan = default_plan(spec, kShape, device_facts(target));
      EXPECT_TRUE(plan.ok()) << to_string(target);
    }
  }
}

}  // namespace
}  // namespace attune
