// Plans that take sequences apart into residues: every family's of both passes against the
// definition in fp64, over dtypes, head dims, heads and lengths; and faults planted in where a
// residue lies.
#include <fmt/format.h>

#include "tests/gpu/cheapest_plans.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

// Tiles that are full and partial, of two residues and of eight.
constexpr ProblemShape kShapes[] = {
    {.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 2560, .kv_len = 2560},
    {.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 840, .kv_len = 1640},
    {.batch = 3, .heads = 3, .kv_heads = 1, .q_len = 120, .kv_len = 1200}};

// The cheapest plan of each family that takes sequences apart.
std::vector<KernelPlan> plans_of(const AttentionSpec& spec, Pass pass) {
  return cheapest_plans(spec, pass, kShapes[0],
                        [](const KernelPlan& plan) { return plan.residues > 1; });
}

constexpr const char* kSpecs[] = {
    "dtype: bf16\nhead_dim: 128\nmask: causal and (q_pos - kv_idx) % 8 == 0",
    "dtype: fp16\nhead_dim: 64\nmask: q_idx % 2 == kv_idx % 2\nlayout: bhsd",
    "dtype: bf16\nhead_dim: 80\nmask: abs(q_pos - kv_idx) < 300 and (q_pos - kv_idx) % 5 == 0",
    "dtype: bf16\nhead_dim: {qk: 192, v: 128}\nmask: causal and (q_pos - kv_idx) % 4 == 0\n"
    "score: score + exp2(-0.5 * (h + 1)) * (kv_idx - q_pos) + 0.25 * b",
    "dtype: fp32\nhead_dim: 64\nmask: dilated(4)\n"
    "score: 20 * tanh((score + 0.01 * kv_idx) / 20)",
    "dtype: bf16\nhead_dim: 128\nmask: dilated(8)\ndeterministic: true"};

class Residues : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    forward_ = plans_of(spec_, Pass::kForward);
    backward_ = plans_of(spec_, Pass::kBackward);
    ASSERT_FALSE(forward_.empty());
    ASSERT_FALSE(backward_.empty());
    std::vector<Request> requests;
    for (const KernelPlan& plan : forward_) requests.push_back({spec_, plan});
    for (const KernelPlan& plan : backward_) requests.push_back({spec_, plan});
    bank.prepare(requests);
  }
  const AttentionSpec spec_ = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  std::vector<KernelPlan> forward_, backward_;
};

TEST_P(Residues, ForwardIsRight) {
  for (const ProblemShape& shape : kShapes)
    EXPECT_TRUE(judge(spec_, random_problem(spec_, shape, 7), forward_)) << to_string(shape);
}

TEST_P(Residues, BackwardIsTheDerivative) {
  for (const ProblemShape& shape : kShapes)
    EXPECT_TRUE(judge_backward(spec_, shape, 11, forward_.front(), backward_));
}

TEST_P(Residues, OtherLengthsAreLeftToOtherPlans) {
  KernelBank& bank = KernelBank::instance();
  const auto kernel = bank.get(spec_, forward_.front());
  ASSERT_TRUE(kernel.ok()) << render(kernel.error());
  const ProblemShape odd = {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 121, .kv_len = 121};
  const auto problem = DeviceProblem::upload(bank.device(), spec_, random_problem(spec_, odd, 3));
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  const Status launched = (*problem)->launch(**kernel, nullptr);
  ASSERT_FALSE(launched.ok());
  EXPECT_EQ(launched.error().id, kStridesUnsupported);
}

TEST_P(Residues, FaultsAreSeen) {
  std::vector<planted::Fault> faults = {{"a residue's LSE lies at the residue before",
                                         {{"* spec::kResidues + slice % spec::kResidues",
                                           "* spec::kResidues + (slice + 1) % spec::kResidues"}}}};
  if (forward_.front().family() == Family::kSm90a) {
    constexpr const char* kHint = "\"l\"(static_cast<unsigned long long>(hint))";
    faults.push_back({"a sequence's last residue is loaded of the next sequence",
                      {{fmt::format("\"r\"(batch / spec::kResidues), {}", kHint),
                        fmt::format("\"r\"((batch + 1) / spec::kResidues), {}", kHint)}}});
  }
  EXPECT_TRUE(are_found(faults, spec_, kShapes[1], forward_.front()));
}

INSTANTIATE_TEST_SUITE_P(Specs, Residues, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
