// Plans other than the cost model's choice. All of them would compile for minutes: a fixed share,
// spread over the space, in slices that processes can share out.
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

// More work items than any GPU has processors, three in four with rows that a fixed reference
// cannot hold, so that items are done again between others of the same CTA.
TEST_P(EveryPlan, DoesAgainWhatOverflowed) {
  const AttentionSpec spec = spec_of("name: test\ndtype: bf16\nhead_dim: 64\n");
  const ProblemShape shape = {.batch = 3, .heads = 128, .kv_heads = 2, .q_len = 130, .kv_len = 400};
  HostProblem problem = random_problem(spec, shape, 29);
  offset_scores(spec, problem, 200, [](int head, int q_idx) -> ScoreOffsets {
    if (q_idx % 8 != 5) return {};
    constexpr ScoreOffsets kOfHead[] = {{200, 200}, {-250, -250}, {0, 150}, {}};
    return kOfHead[head % 4];
  });
  EXPECT_TRUE(judge(spec, problem, plans_of_slice(spec)));
}

INSTANTIATE_TEST_SUITE_P(Slices, EveryPlan, testing::Range(0, kSlices));

}  // namespace
}  // namespace attune::gpu_test
