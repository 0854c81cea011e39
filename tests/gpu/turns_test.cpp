// `deterministic: true` where CTAs add to the same sums of dQ in turns: against the definition in
// fp64, the same to the bit at every launch of a busy GPU, and a CTA that does not wait for its
// turn.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>

#include "tests/gpu/hopper_backward.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/gpu/same_bits.hpp"

namespace attune::gpu_test {
namespace {

// Several query heads a K/V head, and a last tile of either length that is not full.
constexpr ProblemShape kRagged{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 461};
constexpr ProblemShape kBusy{.batch = 4, .heads = 16, .kv_heads = 8, .q_len = 700, .kv_len = 900};
// Heads of several groups, of which the last one is turned round (templates/turn_order.h).
constexpr ProblemShape kGroups{.batch = 2, .heads = 8, .kv_heads = 8, .q_len = 70, .kv_len = 4000};
constexpr ProblemShape kTall{.batch = 4, .heads = 8, .kv_heads = 8, .q_len = 4000, .kv_len = 4000};
// A launch that fills the GPU beside another, and small ones between them.
constexpr ProblemShape kBeside[] = {kBusy, kRagged, kTall, kRagged};

// Of the band the tiles that a query tile has no turn at lie between, of the holes among the
// others.
constexpr NamedLines kCases[] = {
    {"Full64", "head_dim: 64\n"},
    {"Full128", "head_dim: 128\n"},
    {"Causal64", "head_dim: 64\nmask: causal\n"},
    {"Causal128", "head_dim: 128\nmask: causal\n"},
    {"Anticausal96", "head_dim: 96\nmask: kv_idx >= q_idx\n"},
    {"Band64", "head_dim: 64\nmask: abs(q_idx - kv_idx) < 200 or kv_idx < 5\n"},
    {"Holes128", "head_dim: 128\nmask: (q_idx // 64 + kv_idx // 128) % 3 != 0\n"},
    {"Documents64",
     "head_dim: 64\nmask: document(doc)\n"
     "tensors: {doc: {dtype: int32, dims: [batch, kv_len], sample: segments(mean=150)}}\n"},
    {"Softcap128", "head_dim: 128\nmask: causal\nscore: 20 * tanh(score / 20)\ndropout: 0.1\n"},
};

class Turns : public HopperBackward, public testing::WithParamInterface<NamedLines> {
 protected:
  Turns() : HopperBackward(std::string("deterministic: true\n") + GetParam().lines, kBusy) {}
  void SetUp() override {
    HopperBackward::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    KernelBank& bank = KernelBank::instance();
    const auto plans = plans_by_cost(spec_, kBusy, bank.device().facts(), Pass::kBackward).value();
    const auto found = std::ranges::find_if(plans, [&](const KernelPlan& plan) {
      const auto* const tile = std::get_if<Sm90aBackwardPlan>(&plan.tile);
      return tile != nullptr && tile->takes_items == takes_items();
    });
    ASSERT_NE(found, plans.end());
    backward_ = *found;
    bank.prepare({{spec_, forward_}, {spec_, backward_}});
  }

  virtual bool takes_items() const { return false; }

  // Of `launches` of the kernel, on four streams.
  void expect_same_bits(bool same, const LoadedKernel& kernel, int launches) {
    const auto forward = KernelBank::instance().get(spec_, forward_);
    ASSERT_TRUE(forward.ok()) << render(forward.error());
    const auto different = different_launches(spec_, **forward, kernel, kBeside, launches);
    ASSERT_TRUE(different.ok()) << render(different.error());
    EXPECT_EQ(*different == 0, same) << *different << " of " << launches << " launches differ";
  }

  KernelPlan backward_;
};

TEST_P(Turns, IsTheDerivative) {
  EXPECT_TRUE(judge_backward(spec_, kRagged, 11, forward_, {backward_}));
  EXPECT_TRUE(judge_backward(spec_, kGroups, 12, forward_, {backward_}));
}

TEST_P(Turns, EveryLaunchGivesTheSameBits) {
  const auto backward = KernelBank::instance().get(spec_, backward_);
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  expect_same_bits(true, **backward, 1000);
}

INSTANTIATE_TEST_SUITE_P(Specs, Turns, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The same where a CTA takes one key tile after the other.
class TurnsOffCounter : public Turns {
  bool takes_items() const override { return true; }
};

TEST_P(TurnsOffCounter, IsTheDerivative) {
  EXPECT_TRUE(judge_backward(spec_, kRagged, 11, forward_, {backward_}));
  EXPECT_TRUE(judge_backward(spec_, kGroups, 12, forward_, {backward_}));
}

TEST_P(TurnsOffCounter, EveryLaunchGivesTheSameBits) {
  const auto backward = KernelBank::instance().get(spec_, backward_);
  ASSERT_TRUE(backward.ok()) << render(backward.error());
  expect_same_bits(true, **backward, 1000);
}

INSTANTIATE_TEST_SUITE_P(Specs, TurnsOffCounter, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// What the bits are asked for is what the waiting gives.
class TurnsPlanted : public Turns {};

TEST_P(TurnsPlanted, CtasThatDoNotWaitAreSeen) {
  const planted::Fault fault{"nobody waits", {{"if (before >= 0) {", "if (before > 1000000) {"}}};
  const auto faulty = kernel_with(fault, spec_, backward_);
  ASSERT_TRUE(faulty.ok()) << render(faulty.error());
  expect_same_bits(false, **faulty, 100);
}

INSTANTIATE_TEST_SUITE_P(Specs, TurnsPlanted, testing::Values(kCases[1], kCases[3]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
