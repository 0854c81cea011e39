// Hopper's backward plans where there are many more key tiles than processors, taken off a counter
// or not, and heads enough that sums of dQ are handed on: against the definition in fp64, launch
// after launch, and faults planted in what does that.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "tests/gpu/counter_faults.hpp"
#include "tests/gpu/hopper_backward.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::gpu_test {
namespace {

// Five key tiles a head, 640 in all.
constexpr ProblemShape kMany{.batch = 8, .heads = 16, .kv_heads = 16, .q_len = 100, .kv_len = 520};
constexpr ProblemShape kGrouped{
    .batch = 4, .heads = 32, .kv_heads = 16, .q_len = 200, .kv_len = 1100};

// Key tiles enough for first ones that are early and for rows that are made ahead, of more heads
// than have sums at a time. The definition takes seconds for each head and 16 dims of it: of narrow
// heads, and nothing but these.
constexpr ProblemShape kLong{.batch = 2, .heads = 34, .kv_heads = 34, .q_len = 24, .kv_len = 4000};

struct Case : NamedLines {
  bool is_long = false;  // kLong's, else the other shapes'
};
// Under the band keys from 200 on have no queries where there are 100.
constexpr Case kCases[] = {
    {{"Full", "head_dim: 64\n"}},
    {{"Causal", "head_dim: 64\nmask: causal\n"}},
    {{"Band", "head_dim: 64\nmask: abs(q_idx - kv_idx) < 100\n"}},
    {{"Sink",
      "head_dim: 48\nmask: causal\nsink: sinks[h]\n"
      "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n"}},
    {{"Softcap", "head_dim: {qk: 64, v: 32}\nscore: 20 * tanh(score / 20)\ndropout: 0.1\n"}},
    {{"Window128", "head_dim: 128\nmask: causal and q_idx - kv_idx < 60\n"}},
    // Tiles of queries whose keys lie in one tile of keys, and tiles of keys without queries.
    {{"Band128", "head_dim: 128\nmask: abs(q_idx - kv_idx) < 40\n"}},
    {{"Sink128",
      "head_dim: {qk: 128, v: 96}\nmask: abs(q_idx - kv_idx) < 70\nsink: sinks[h]\n"
      "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n"}},
    {{"Global", "head_dim: 64\nmask: abs(100 * q_idx - kv_idx) < 300 or kv_idx < 4\n"}},
    {{"Global128", "head_dim: 128\nmask: abs(100 * q_idx - kv_idx) < 300 or kv_idx < 4\n"}},
    {{"BandLong", "head_dim: 16\nmask: abs(q_idx - kv_idx) < 40\n"}, true},
    {{"BandLong80", "head_dim: {qk: 80, v: 16}\nmask: abs(q_idx - kv_idx) < 40\n"}, true},
    {{"GlobalLong", "head_dim: 16\nmask: abs(100 * q_idx - kv_idx) < 300 or kv_idx < 4\n"}, true},
    {{"GlobalLong80",
      "head_dim: {qk: 80, v: 16}\nmask: abs(100 * q_idx - kv_idx) < 300 or kv_idx < 4\n"},
     true},
};

// Of every head the keys from `first` on.
void spoil_keys(HostProblem& problem, int head_dim, std::int64_t first) {
  for (std::vector<double>* matrix : {&problem.k, &problem.v}) {
    for (std::size_t i = 0; i < matrix->size(); ++i) {
      const auto key = static_cast<std::int64_t>(i) / head_dim % problem.shape.kv_len;
      if (key >= first) (*matrix)[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

bool takes_items(const KernelPlan& plan) {
  return std::get<Sm90aBackwardPlan>(plan.tile).takes_items;
}

// What else plans of narrow heads choose says nothing of how items are dealt out.
bool is_plain(const KernelPlan& plan) {
  const Sm90aBackwardPlan& tile = std::get<Sm90aBackwardPlan>(plan.tile);
  return tile.stages == 2 && !tile.rotated && !tile.keys_in_registers;
}

class Counter : public HopperBackward, public testing::WithParamInterface<Case> {
 protected:
  Counter() : HopperBackward(GetParam().lines, kMany) {}
  void SetUp() override {
    HopperBackward::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const DeviceFacts& facts = KernelBank::instance().device().facts();
    for (const KernelPlan& plan : legal_plans(spec_, Family::kSm90a, facts, Pass::kBackward)) {
      if (!std::holds_alternative<Sm90aBackwardPlan>(plan.tile)) continue;
      if (is_plain(plan) || !GetParam().is_long) plans_.push_back(plan);
    }
    // Those off the counter come first.
    std::ranges::stable_partition(plans_, takes_items);
    ASSERT_FALSE(plans_.empty());
  }

  std::vector<KernelPlan> plans_;
};

TEST_P(Counter, EveryPlanIsTheDerivative) {
  KernelBank::instance().prepare(requests_of(spec_, {.forward = forward_, .backward = plans_}));
  const std::vector<ProblemShape> shapes =
      GetParam().is_long ? std::vector{kLong} : std::vector{kMany, kGrouped};
  constexpr int kLaunches = 2;
  for (const ProblemShape& shape : shapes)
    EXPECT_TRUE(judge_backward(spec_, shape, 11, forward_, plans_, kLaunches));
}

// K and V of keys that no query sees may be anything, in key tiles of their own.
TEST_P(Counter, KeysWithoutQueriesStayOut) {
  if (std::string(GetParam().name) != "Band") GTEST_SKIP() << "every key has queries";
  KernelBank& bank = KernelBank::instance();
  bank.prepare({{spec_, forward_}, {spec_, plans_.front()}});
  const auto forward = bank.get(spec_, forward_), backward = bank.get(spec_, plans_.front());
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  HostProblem problem = random_problem(spec_, kMany, 13);
  const auto on_device = BackwardProblem::make(bank.device(), spec_, problem, **forward, 13);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  const BackwardOracle oracle = oracle_backward(spec_, problem, (*on_device)->output_gradients());
  spoil_keys(problem, 64, 384);
  const auto spoilt = BackwardProblem::make(bank.device(), spec_, problem, **forward, 13);
  ASSERT_TRUE(spoilt.ok()) << render(spoilt.error());
  const auto gradients = (*spoilt)->run(**backward);
  ASSERT_TRUE(gradients.ok()) << render(gradients.error());
  EXPECT_EQ(wrong_gradient(*gradients, oracle), "");
}

INSTANTIATE_TEST_SUITE_P(Specs, Counter, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

class CounterPlanted : public Counter {
 protected:
  void SetUp() override {
    Counter::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    KernelBank& bank = KernelBank::instance();
    const auto forward = bank.get(spec_, forward_);
    ASSERT_TRUE(forward.ok()) << render(forward.error());
    problem_ = random_problem(spec_, shape_, 12);
    auto on_device = BackwardProblem::make(bank.device(), spec_, problem_, **forward, 12);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    on_device_ = std::move(*on_device);
    oracle_ = oracle_backward(spec_, problem_, on_device_->output_gradients());
  }

  // Whether the gradients by `plan` with an edited source are right.
  void expect(bool right, const planted::Fault& fault, const KernelPlan& plan) {
    const auto edited = kernel_with(fault, spec_, plan);
    ASSERT_TRUE(edited.ok()) << render(edited.error());
    const auto gradients = on_device_->run(**edited);
    ASSERT_TRUE(gradients.ok()) << render(gradients.error());
    EXPECT_EQ(wrong_gradient(*gradients, oracle_) == "", right) << fault.name;
  }

  ProblemShape shape_ = kMany;

 private:
  HostProblem problem_;
  std::unique_ptr<BackwardProblem> on_device_;
  BackwardOracle oracle_;
};

TEST_P(CounterPlanted, FaultsAreSeen) {
  for (const planted::Fault& fault : planted::counter_faults())
    expect(false, fault, plans_.front());
}

INSTANTIATE_TEST_SUITE_P(Specs, CounterPlanted, testing::Values(kCases[0], kCases[1]),
                         [](const auto& info) { return std::string(info.param.name); });

// Where a CTA has a single item, its head's last one brings dQ to rows; under a mask others help.
class PassingPlanted : public CounterPlanted {};

TEST_P(PassingPlanted, HelpIsRightAndItsFaultsAreSeen) {
  const KernelPlan& plan = plans_.back();
  ASSERT_FALSE(takes_items(plan));
  expect(true, planted::early_help(), plan);
  for (const planted::Fault& fault : planted::passing_faults()) expect(false, fault, plan);
}

INSTANTIATE_TEST_SUITE_P(Specs, PassingPlanted, testing::Values(kCases[5]),
                         [](const auto& info) { return std::string(info.param.name); });

// Keys are loaded by a warp of its own, and all heads have sums.
class ApartPlanted : public CounterPlanted {};

TEST_P(ApartPlanted, FaultsAreSeen) {
  const auto found = std::ranges::find_if(plans_, [&](const KernelPlan& plan) {
    const bool by_choice = std::get<Sm90aBackwardPlan>(plan.tile).keys_apart;
    return by_choice || (spec_.head_dim_qk > 64 && takes_items(plan));
  });
  ASSERT_NE(found, plans_.end());
  const KernelPlan& plan = *found;
  expect(true, {"none", {}}, plan);
  for (const planted::Fault& fault : planted::apart_faults()) expect(false, fault, plan);
}

INSTANTIATE_TEST_SUITE_P(Specs, ApartPlanted, testing::Values(kCases[6], kCases[10]),
                         [](const auto& info) { return std::string(info.param.name); });

// A key tile whose second half sees no query of the first tile that its first half sees.
class SkippedPlanted : public CounterPlanted {
 protected:
  SkippedPlanted() { shape_ = kGrouped; }
};

TEST_P(SkippedPlanted, FaultsAreSeen) {
  int tried = 0;
  for (const KernelPlan& plan : plans_) {
    const Sm90aBackwardPlan& tile = std::get<Sm90aBackwardPlan>(plan.tile);
    if (!is_plain(plan) || tile.tile_q != 64 || tile.cuts_walks) continue;
    ++tried;
    expect(true, {"none", {}}, plan);
    for (const planted::Fault& fault : planted::skipped_tile_faults()) expect(false, fault, plan);
  }
  EXPECT_GT(tried, 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, SkippedPlanted, testing::Values(kCases[1]),
                         [](const auto& info) { return std::string(info.param.name); });

class EarlyPlanted : public CounterPlanted {
 protected:
  EarlyPlanted() { shape_ = kLong; }
};

TEST_P(EarlyPlanted, FaultsAreSeen) {
  for (const KernelPlan& plan : {plans_.front(), plans_.back()}) {
    expect(true, {"none", {}}, plan);
    expect(false, planted::early_tile_fault(), plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EarlyPlanted, testing::Values(kCases[12]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
