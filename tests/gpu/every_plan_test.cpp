// Plans other than the cost model's choice. All of them would compile for minutes: a fixed share,
// spread over the space, in slices that processes can share out.
#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/score_offsets.hpp"

namespace attune::gpu_test {
namespace {

constexpr std::size_t kPlansOfFamily = 24;
constexpr int kSlices = 8;

class EveryPlan : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  }
  // The slice's plans, built.
  static std::vector<KernelPlan> plans_of_slice(const AttentionSpec& spec) {
    KernelBank& bank = KernelBank::instance();
    const auto families = families_for(spec, bank.device().facts().target);
    EXPECT_TRUE(families.ok());
    if (!families.ok()) return {};
    std::vector<Request> requests;
    for (const Family family : *families) {
      const auto plans = legal_plans(spec, family, bank.device().facts());
      const std::size_t step = std::max<std::size_t>(1, plans.size() / kPlansOfFamily);
      for (std::size_t i = static_cast<std::size_t>(GetParam()) * step; i < plans.size();
           i += kSlices * step) {
        requests.push_back({spec, plans[i]});
      }
    }
    bank.prepare(requests);
    std::vector<KernelPlan> plans;
    for (const Request& request : requests) {
      if (!bank.gives_up(spec, request.plan)) plans.push_back(request.plan);
    }
    EXPECT_GE(2 * plans.size(), requests.size()) << "most plans must be built";
    return plans;
  }
};

TEST_P(EveryPlan, IsRight) {
  const AttentionSpec spec = spec_of(
      "name: test\ndtype: bf16\nhead_dim: 64\ntensors: {doc: {dtype: int32, dims: [batch, "
      "kv_len]}}\n"
      "mask: causal and document(doc)\nscore: 20 * tanh(score / 20)\ndropout: 0.25\n");
  const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 500, .kv_len = 600};
  EXPECT_TRUE(judge(spec, random_problem(spec, shape, 5), plans_of_slice(spec)));
}

TEST_P(EveryPlan, IsRightInFp32) {
  for (const char* precision : {"strict", "tf32"}) {
    const AttentionSpec spec =
        spec_of(fmt::format("name: test\ndtype: fp32\nprecision: {}\nhead_dim: 64\n"
                            "mask: causal\nscore: 20 * tanh(score / 20)\n",
                            precision));
    const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 500, .kv_len = 600};
    EXPECT_TRUE(judge(spec, random_problem(spec, shape, 5), plans_of_slice(spec))) << precision;
  }
}

// More work items than any GPU has processors, three in four with rows that a fixed reference
// cannot hold, so that items are done again between others of the same CTA. Off a counter it is
// chance which items teach which, unless the spec asks for the same bits.
TEST_P(EveryPlan, DoesAgainWhatOverflowed) {
  for (const bool deterministic : {false, true}) {
    const AttentionSpec spec = spec_of(
        fmt::format("name: test\ndtype: bf16\nhead_dim: 64\ndeterministic: {}\n", deterministic));
    const ProblemShape shape = {
        .batch = 3, .heads = 128, .kv_heads = 2, .q_len = 130, .kv_len = 400};
    HostProblem problem = random_problem(spec, shape, 29);
    offset_scores(spec, problem, 200, beyond_in_three_of_four_heads);
    const int launches = deterministic ? 10 : 1;
    EXPECT_TRUE(judge(spec, problem, plans_of_slice(spec), launches)) << deterministic;
  }
}

// P through shared memory: one piece and two, pieces that are dead, dropout, both dtypes.
TEST(PInShared, IsRight) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  if (bank.device().facts().target != Target::kSm90a) GTEST_SKIP() << "the plans are for sm_90a";
  struct Case {
    const char* spec;
    const char* plan;  // after the target
  };
  for (const Case& c :
       {Case{"head_dim: 128\nmask: causal", "w3 k96 s2 b1 psmem c1 longest g16 frozen tma"},
        Case{"head_dim: 64\nmask: 0 <= q_idx - kv_idx < 150",
             "w2 k128 s2 b2 psmem c1 single g1 frozen"},
        Case{"head_dim: 64\nmask: (q_idx - kv_idx) % 3 == 0\ndropout: 0.3",
             "w2 k128 s3 b2 qreg psmem c1 persistent g1 frozen tma"},
        Case{"head_dim: 96\ndropout: 0.1", "w3 k128 s2 b1 psmem c1 persistent g1 frozen pp"},
        Case{"head_dim: 256\nmask: causal\nscore: 30 * tanh(score / 30)",
             "w2 k64 s2 b1 psmem c1 persistent g1"}}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}\n", dtype, c.spec));
      const auto plan = parse_plan(fmt::format("sm90a forward sm_90a {}", c.plan));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      const ProblemShape shape = {
          .batch = 1, .heads = 2, .kv_heads = 2, .q_len = 400, .kv_len = 500};
      if (bank.gives_up(spec, *plan)) continue;
      EXPECT_TRUE(judge(spec, random_problem(spec, shape, 11), {*plan})) << c.spec << ' ' << c.plan;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slices, EveryPlan, testing::Range(0, kSlices));

}  // namespace
}  // namespace attune::gpu_test
