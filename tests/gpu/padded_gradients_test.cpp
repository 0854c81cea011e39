// Gradients beside padding by an additive bias: keys of which it leaves nothing are as if they were
// masked, and so are rows of nothing else, but that their dO and dLSE must be finite.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/verification/hostile_gradient_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLowest = std::numeric_limits<float>::lowest();

class PaddedGradients : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {};

TEST_P(PaddedGradients, AreThoseOfLiveKeys) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  const auto& [dtype, dim, live] = GetParam();
  for (const bool learns : {false, true}) {
    const auto spec_with = [&, dtype = dtype, dim = dim](const std::string& mask) {
      return spec_of(
          fmt::format("name: t\ndtype: {}\nhead_dim: {}\nmask: {}\npasses: [forward, backward]\n"
                      "score: score + bias[q_idx, kv_idx]\n"
                      "tensors: {{bias: {{dtype: float32, dims: [q_len, kv_len]{}}}}}\n",
                      dtype, dim, mask, learns ? ", grad: true" : ""));
    };
    const AttentionSpec spec = spec_with(live);
    const AttentionSpec masked =
        spec_with(fmt::format("({}) and bias[q_idx, kv_idx] > -5e3", live));
    constexpr ProblemShape kShape{
        .batch = 1, .heads = 2, .kv_heads = 1, .q_len = 200, .kv_len = 261};
    const auto by_cost = plans_by_cost(spec, kPlanShape, bank.device().facts());
    ASSERT_TRUE(by_cost.ok()) << render(by_cost.error());
    BackwardPlans plans{.forward = by_cost->front(), .backward = {}};
    const auto families = families_for(spec, bank.device().facts().target, Pass::kBackward);
    ASSERT_TRUE(families.ok());
    for (const Family family : *families) {
      const auto legal = legal_plans(spec, family, bank.device().facts(), Pass::kBackward);
      if (!legal.empty()) plans.backward.push_back(legal[legal.size() / 2]);
    }
    bank.prepare(requests_of(spec, plans));
    const auto forward = bank.get(spec, plans.forward);
    ASSERT_TRUE(forward.ok()) << render(forward.error());
    for (const double padding : {-1e4, -1e6, -1e9, -1e30, kLowest, -kInfinity}) {
      HostProblem problem = random_problem(spec, kShape, 31);
      for (int q = 0; q < kShape.q_len; ++q) {
        const bool no_key = padding <= -1e9 && (q % 5 == 2 || (q >= 64 && q < 100));
        for (int k = 0; k < kShape.kv_len; ++k) {
          const bool is_padded = no_key || (q + k) % 7 == 3 || (k >= 128 && k < 192 && q % 2 == 0);
          double& value =
              problem.tensors[0].values[static_cast<std::size_t>(q * kShape.kv_len + k)];
          value = is_padded ? padding : (k - q) % 4 * 0.25;
        }
      }
      const auto made = BackwardProblem::make(bank.device(), spec, problem, **forward, 31);
      ASSERT_TRUE(made.ok()) << render(made.error());
      // The mask says which rows may have anything.
      OutputGradients given = (*made)->output_gradients();
      for (double& value : given.d_o)
        if (std::isnan(value)) value = 0.5;
      std::vector<float> d_lse;
      for (double& value : given.d_lse) {
        if (std::isnan(value)) value = 0;
        d_lse.push_back(static_cast<float>(value));
      }
      const att::LaunchParams& params = (*made)->params();
      ASSERT_TRUE(hostile::replace_d_o(bank.device(), spec, kShape, params, given.d_o).ok());
      ASSERT_TRUE(bank.device()
                      .copy_to_device(const_cast<float*>(params.d_lse), d_lse.data(),
                                      d_lse.size() * sizeof(float))
                      .ok());
      const BackwardOracle expected = oracle_backward(masked, problem, given, true);
      for (const KernelPlan& plan : plans.backward) {
        const auto kernel = bank.get(spec, plan);
        if (bank.gives_up(spec, plan)) continue;
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        const auto gradients = (*made)->run(**kernel);
        ASSERT_TRUE(gradients.ok()) << render(gradients.error());
        EXPECT_EQ(wrong_gradient(*gradients, expected), "")
            << to_string(plan) << " of " << padding << (learns ? ", learned" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PaddedGradients,
                         testing::Combine(testing::Values("bf16", "fp16", "fp32"),
                                          testing::Values(64, 128, 256),
                                          testing::Values("true", "causal")));

}  // namespace
}  // namespace attune::gpu_test
