// Walks of few key tiles, cut into parts whose dK and dV are added up: right and the same to the
// bit whatever the parts are, and what goes wrong with a part is found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/judged_gradients.hpp"
#include "tests/gpu/same_bits.hpp"
#include "tests/verification/editing_compiler.hpp"

namespace attune::gpu_test {
namespace {

// A group whose parts end within heads, one with a part for each two query tiles, key tiles with a
// single part, sequences shorter than a tile.
constexpr ProblemShape kShapes[] = {
    {.batch = 2, .heads = 6, .kv_heads = 1, .q_len = 777, .kv_len = 154},
    {.batch = 1, .heads = 64, .kv_heads = 8, .q_len = 197, .kv_len = 197},
    {.batch = 1, .heads = 5, .kv_heads = 1, .q_len = 500, .kv_len = 2100},
    {.batch = 3, .heads = 24, .kv_heads = 24, .q_len = 130, .kv_len = 129},
    {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1, .kv_len = 1},
    {.batch = 1, .heads = 2, .kv_heads = 1, .q_len = 3000, .kv_len = 40}};

constexpr const char* kSpecs[] = {
    "dtype: bf16\nhead_dim: 40\nmask: causal",
    "dtype: fp16\nhead_dim: 16\nmask: abs(q_idx - kv_idx) <= 100 and h % 3 != 1",
    "dtype: bf16\nhead_dim: 64\ndropout: 0.25\nscore: 5 * tanh(score / 5)",
    "dtype: bf16\nhead_dim: 72",
    "dtype: fp16\nhead_dim: {qk: 96, v: 128}\nmask: kv_idx <= q_idx and q_idx % 7 != 3",
    "dtype: bf16\nhead_dim: 128\ntensors:\n  sinks: {dtype: float32, dims: [heads], grad: "
    "true}\nsink: sinks[h]",
    "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal",
    "dtype: fp16\nhead_dim: 256\nmask: q_idx - kv_idx <= 300\ndropout: 0.1"};

bool cuts_walks(const KernelPlan& plan) {
  if (const auto* tile = std::get_if<Sm90aOrderedPlan>(&plan.tile)) return tile->cuts_walks;
  const auto* tile = std::get_if<Sm90aBackwardPlan>(&plan.tile);
  return tile != nullptr && tile->cuts_walks;
}

// Of each family the cheapest plan that cuts walks.
BackwardPlans plans_with_parts(const AttentionSpec& spec) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  BackwardPlans plans = cheapest_of_both_passes(spec, kShapes[0], facts);
  plans.backward.clear();
  const auto all = plans_by_cost(spec, kShapes[0], facts, Pass::kBackward);
  if (!all.ok()) return plans;
  for (const KernelPlan& plan : *all) {
    if (!cuts_walks(plan) || std::ranges::find(plans.backward, plan.family(),
                                               &KernelPlan::family) != plans.backward.end()) {
      continue;
    }
    plans.backward.push_back(plan);
  }
  return plans;
}

class WalkParts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  }
  // False where nothing cuts its walks.
  static bool prepare(const AttentionSpec& spec, BackwardPlans& plans) {
    plans = plans_with_parts(spec);
    KernelBank::instance().prepare(requests_of(spec, plans));
    return !plans.backward.empty();
  }
};

TEST_P(WalkParts, AddUpToTheDerivative) {
  const AttentionSpec spec = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  BackwardPlans plans;
  if (!prepare(spec, plans)) GTEST_SKIP() << "no plan cuts walks";
  std::uint64_t seed = std::hash<std::string>{}(GetParam());
  for (const ProblemShape& shape : kShapes) {
    EXPECT_TRUE(judge_backward(spec, shape, ++seed, plans.forward, plans.backward))
        << to_string(shape);
  }
}

TEST_P(WalkParts, AddUpToTheSameBitsAtEveryLaunch) {
  KernelBank& bank = KernelBank::instance();
  const AttentionSpec spec = spec_of(fmt::format("name: t\ndeterministic: true\n{}\n", GetParam()));
  BackwardPlans plans;
  if (!prepare(spec, plans)) GTEST_SKIP() << "no plan cuts walks";
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const auto backward = bank.get(spec, plans.backward.front());
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  constexpr int kLaunches = 200;
  const auto different = different_launches(spec, **forward, **backward, kShapes, kLaunches);
  ASSERT_TRUE(different.ok()) << render(different.error());
  EXPECT_EQ(*different, 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, WalkParts, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

class WalkPartFaults : public testing::TestWithParam<const char*> {};

TEST_P(WalkPartFaults, AreFound) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const std::string sum = "sum[n] += numbers[i][n / 4][n % 4];";
  const std::string first =
      "head == first_head ? all.first + share(count, first_tile) : all.first,";
  const std::string loop = "part < parts; part += kAtOnce";
  const auto moved = [](const char* by) {
    return fmt::format(
        "head == first_head ? all.first + share(count, first_tile) {} (part == 3) : all.first,",
        by);
  };
  const std::string stored = "__builtin_bit_cast(unsigned, gradient[4 * n + 2 * half]),";
  const planted::Fault faults[] = {
      {"a part left out", {{sum, "if (part + i != 2) " + sum}}},
      {"a part added twice", {{sum, "{ " + sum + " if (part + i == 2) " + sum + " }"}}},
      {"the last parts left out", {{loop, "part + kAtOnce < parts; part += kAtOnce"}}},
      {"a tile between two parts left out", {{first, moved("+")}}},
      {"a tile between two parts taken twice", {{first, moved("-")}}},
      {"half of a part's rows scaled by 1.05",
       {{stored,
         "__builtin_bit_cast(unsigned, gradient[4 * n + 2 * half] * (half == 1 ? 1.05f : "
         "1.0f)),"}}}};
  const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: bf16\n{}\n", GetParam()));
  constexpr ProblemShape shape{.batch = 1, .heads = 6, .kv_heads = 1, .q_len = 1000, .kv_len = 154};
  const BackwardPlans plans = plans_with_parts(spec);
  if (plans.backward.empty()) GTEST_SKIP() << "no plan cuts walks";
  bank.prepare(requests_of(spec, plans));
  const auto forward = bank.get(spec, plans.forward);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const auto oracle = GradientOracle::make(bank.device(), bank.compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const auto with = JudgedGradients::make(spec, shape, **forward, **oracle, 7);
  ASSERT_TRUE(with.ok()) << render(with.error());
  for (const KernelPlan& plan : plans.backward) {
    SCOPED_TRACE(to_string(plan));
    const auto right = bank.get(spec, plan);
    ASSERT_TRUE(right.ok()) << render(right.error());
    const auto verdict_of_right = (*with)->of(**right);
    ASSERT_TRUE(verdict_of_right.ok()) << render(verdict_of_right.error());
    EXPECT_EQ(verdict_of_right->wrong, "");
    std::vector<Result<BuiltKernel>> built(std::size(faults), Error{});
    parallel_for(static_cast<std::int64_t>(std::size(faults)), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      planted::EditingCompiler editing(bank.compiler(), faults[at]);
      built[at] = build(spec, plan, editing, nullptr);
    });
    for (std::size_t i = 0; i < std::size(faults); ++i) {
      SCOPED_TRACE(faults[i].name);
      ASSERT_TRUE(built[i].ok()) << render(built[i].error());
      const auto kernel = bank.device().load(spec, plan, built[i]->code.image);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto verdict = (*with)->of(**kernel);
      ASSERT_TRUE(verdict.ok()) << render(verdict.error());
      EXPECT_NE(verdict->wrong, "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, WalkPartFaults,
                         testing::Values("head_dim: 64",
                                         "head_dim: 128\nmask: kv_idx <= q_idx + 900",
                                         "head_dim: 256\nmask: causal"),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
