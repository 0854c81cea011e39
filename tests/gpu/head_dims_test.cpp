// Head dims that Hopper's products do not go through in whole steps of 16: what TMA brings and
// leaves out behind a head's own columns. Neighbours of a head in memory are other heads, so that a
// column too many shows.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/head_dim_faults.hpp"
#include "tests/gpu/hopper_backward.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"

namespace attune::gpu_test {
namespace {

constexpr ProblemShape kTypical{
    .batch = 2, .heads = 8, .kv_heads = 8, .q_len = 2048, .kv_len = 2048};
constexpr ProblemShape kOdd{.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 150, .kv_len = 333};

// A few of a family's plans, spread over all.
std::vector<KernelPlan> spread(const std::vector<KernelPlan>& plans, std::size_t count) {
  std::vector<KernelPlan> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(plans[i * plans.size() / count]);
  return some;
}

class HeadDims : public testing::TestWithParam<NamedLines> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
    spec_ = spec_of(fmt::format("name: t\ndtype: bf16\n{}", GetParam().lines));
  }
  // The cost model's choice and others of the family.
  std::vector<KernelPlan> plans(Pass pass, std::size_t count) const {
    const DeviceFacts& facts = KernelBank::instance().device().facts();
    const KernelPlan first = plans_by_cost(spec_, kTypical, facts, pass).value().front();
    EXPECT_NE(first.family(), Family::kSm80) << to_string(first);
    std::vector<KernelPlan> found = spread(legal_plans(spec_, first.family(), facts, pass), count);
    found.push_back(first);
    return found;
  }

  AttentionSpec spec_;
};

TEST_P(HeadDims, ForwardIsRight) {
  KernelBank& bank = KernelBank::instance();
  std::vector<KernelPlan> found = plans(Pass::kForward, 6);
  bank.prepare(requests_of(spec_, {.forward = found.back(), .backward = found}));
  std::erase_if(found, [&](const KernelPlan& plan) { return bank.gives_up(spec_, plan); });
  EXPECT_TRUE(judge(spec_, random_problem(spec_, kOdd, 7), found));
}

TEST_P(HeadDims, GradientsAreRight) {
  if (std::max(spec_.head_dim_qk, spec_.head_dim_v) > 128) {
    GTEST_SKIP() << "the sm80 family makes gradients of wider heads";
  }
  const KernelPlan forward = plans(Pass::kForward, 1).back();
  // Each has its own way to rows of O and dO.
  const std::vector<KernelPlan> found = plans(Pass::kBackward, 8);
  KernelBank::instance().prepare(requests_of(spec_, {.forward = forward, .backward = found}));
  EXPECT_TRUE(judge_backward(spec_, kOdd, 11, forward, found));
  // Heads enough for rows that are made ahead.
  const ProblemShape many = {.batch = 8, .heads = 16, .kv_heads = 16, .q_len = 100, .kv_len = 520};
  EXPECT_TRUE(judge_backward(spec_, many, 12, forward, found));
}

TEST_P(HeadDims, FaultsAreSeen) {
  const auto by_hand = [](const KernelPlan& plan) {
    return !std::get<Sm90aPlan>(plan.tile).tma_store;
  };
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  const std::vector<KernelPlan> all = legal_plans(spec_, Family::kSm90a, facts);
  const auto plan = std::ranges::find_if(all, by_hand);
  ASSERT_NE(plan, all.end());
  EXPECT_TRUE(is_found(planted::columns_of_the_next_head(), spec_, kOdd, *plan));
}

constexpr NamedLines kCases[] = {
    {"D24", "head_dim: 24\n"},
    {"D40", "head_dim: 40\n"},
    {"D40Causal", "head_dim: 40\nmask: causal\n"},
    {"D56Window", "head_dim: 56\nmask: causal and q_pos - kv_idx < 60\n"},
    {"D72", "head_dim: 72\n"},
    {"D72Causal", "head_dim: 72\nmask: causal\n"},
    {"D72Softcap", "head_dim: 72\nmask: causal\nscore: 20 * tanh(score / 20)\ndropout: 0.1\n"},
    {"D88Sink",
     "head_dim: 88\nmask: causal\nsink: sinks[h]\n"
     "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}\n"},
    {"D104", "head_dim: 104\nmask: (q_idx + kv_idx) % 3 == 0\n"},
    {"D120Causal", "head_dim: 120\nmask: causal\n"},
    {"Qk72V40", "head_dim: {qk: 72, v: 40}\nmask: causal\n"},
    {"Qk40V72", "head_dim: {qk: 40, v: 72}\n"},
    {"D136", "head_dim: 136\nmask: causal\n"},
    {"D200", "head_dim: 200\n"},
    {"D248Strict", "head_dim: 248\nmask: causal\naccuracy: strict\n"},
};
INSTANTIATE_TEST_SUITE_P(Specs, HeadDims, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Sums of dQ are of a head's own columns.
class HeadDimsSums : public HeadDims {};

TEST_P(HeadDimsSums, FaultsAreSeen) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  const std::vector<KernelPlan> all = legal_plans(spec_, Family::kSm90a, facts, Pass::kBackward);
  const auto has_tiles_of = [](int queries) {
    return [=](const KernelPlan& plan) { return tile_shape(plan).q == queries; };
  };
  ASSERT_TRUE(has_tiles_of(64)(all.front()));
  EXPECT_TRUE(is_found(planted::last_block_not_added(), spec_, kOdd, all.front()));
  EXPECT_TRUE(is_found(planted::last_block_not_zeroed(), spec_, kOdd, all.front()));
  const auto tall = std::ranges::find_if(all, has_tiles_of(80));
  if (tall == all.end()) return;
  EXPECT_TRUE(is_found(planted::last_warp_adds_nothing(), spec_, kOdd, *tall));
}

INSTANTIATE_TEST_SUITE_P(Specs, HeadDimsSums, testing::Values(kCases[1], kCases[4]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
