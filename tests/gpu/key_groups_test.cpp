// sm80 plans whose warps share rows, each with a share of every tile's keys.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/score_offsets.hpp"

namespace attune::gpu_test {
namespace {

constexpr std::array kTiles = {"q64 k64 s2 w8 c16 u1", "q32 k64 s2 w8 c16 u1",
                               "q32 k32 s3 w4 c16 u1", "q16 k64 s2 w4 c16 u1",
                               "q32 k128 s2 w8 c16 u2 qreg"};

struct Case {
  const char* name;
  const char* spec;
  bool runs = false;  // the maximum, throughout
};

constexpr Case kCases[] = {
    {"Full64", "head_dim: 64\n"},
    {"Causal128", "head_dim: 128\nmask: causal\n"},
    {"Window192on128",
     "head_dim: {qk: 192, v: 128}\nmask: causal and q_pos - kv_idx < 20 and q_idx % 7 != 3\n"},
    {"SinkDropout40",
     "head_dim: 40\nmask: causal\ndropout: 0.25\ntensors: {logits: {dtype: float32, dims: "
     "[heads]}}\nsink: logits[h]\n"},
    {"Running64", "head_dim: 64\nmask: causal\n", true},
    {"OneProduct96", "head_dim: 96\nprecision: tf32\nscore: 20 * tanh(score / 20)\n"},
};

class KeyGroups : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    spec_ = spec_of(fmt::format("name: groups\ndtype: fp32\n{}", GetParam().spec));
    std::vector<Request> requests;
    for (const char* tile : kTiles) {
      const auto plan =
          parse_plan(fmt::format("sm80 forward {} {}{}", to_string(bank.device().facts().target),
                                 tile, GetParam().runs ? "" : " frozen"));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (!check_plan(spec_, *plan, bank.device().facts()).ok()) continue;
      plans_.push_back(*plan);
      requests.push_back({spec_, *plan});
    }
    ASSERT_GE(plans_.size(), 2u);
    bank.prepare(requests);
  }
  AttentionSpec spec_;
  std::vector<KernelPlan> plans_;
};

TEST_P(KeyGroups, AreRightAtAnyLength) {
  for (const auto& [queries, keys] :
       {std::array{1, 1}, {1, 17}, {33, 15}, {77, 77}, {100, 333}, {129, 65}}) {
    const ProblemShape shape = {
        .batch = 2, .heads = 4, .kv_heads = 2, .q_len = queries, .kv_len = keys};
    EXPECT_TRUE(judge(spec_, random_problem(spec_, shape, 3), plans_)) << queries << ' ' << keys;
  }
}

TEST_P(KeyGroups, DoAgainWhatOverflowed) {
  const ProblemShape shape = {.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 130, .kv_len = 400};
  HostProblem problem = random_problem(spec_, shape, 29);
  offset_scores(spec_, problem, 200, beyond_in_three_of_four_heads);
  EXPECT_TRUE(judge(spec_, problem, plans_));
}

TEST_P(KeyGroups, KeepWhatIsNotFinite) {
  if (spec_.mask) GTEST_SKIP() << "a masked key's value may spoil rows of its tile";
  const ProblemShape shape = {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 50, .kv_len = 400};
  HostProblem problem = random_problem(spec_, shape, 31);
  const auto dims = static_cast<std::size_t>(spec_.head_dim_v);
  problem.v[300 * dims + 5] = std::numeric_limits<double>::quiet_NaN();
  problem.v[210 * dims + 9] = std::numeric_limits<double>::infinity();
  problem.v[100 * dims + 11] = -std::numeric_limits<double>::infinity();
  EXPECT_TRUE(judge(spec_, problem, plans_));
}

INSTANTIATE_TEST_SUITE_P(All, KeyGroups, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attune::gpu_test
