// The limits of gradients under hostile magnitudes: the arithmetic of the GPU families stays within
// them, and does not where a row's likeliest key is left out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "tests/verification/hostile_gradients.hpp"
#include "tests/verification/plain_backward.hpp"

namespace attune {
namespace {

using hostile::Hostility;

constexpr ProblemShape kShape{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 90, .kv_len = 131};

// Of the first query.
int likeliest_key(const AttentionSpec& spec, const HostProblem& problem) {
  const std::int64_t live = spec.mask ? kShape.kv_len - kShape.q_len + 1 : kShape.kv_len;
  const auto dim = static_cast<std::size_t>(spec.head_dim_qk);
  const auto product = [&](std::int64_t key) {
    return std::inner_product(
        problem.q.begin(), problem.q.begin() + spec.head_dim_qk,
        problem.k.begin() + static_cast<std::ptrdiff_t>(key) * static_cast<std::ptrdiff_t>(dim),
        0.0);
  };
  std::int64_t best = 0;
  for (std::int64_t key = 1; key < live; ++key) {
    if (product(key) > product(best)) best = key;
  }
  return static_cast<int>(best);
}

class HostileLimits
    : public testing::TestWithParam<std::tuple<const char*, int, const char*, Hostility>> {};

TEST_P(HostileLimits, HoldTheDtypesArithmetic) {
  const auto& [dtype, dim, mask, hostility] = GetParam();
  const auto spec = parse_spec(
      fmt::format("attune: 1\nname: t\nhead_dim: {}\ndtype: {}\nmask: {}\n", dim, dtype, mask),
      "t");
  ASSERT_TRUE(spec.ok()) << render(spec.error());
  HostProblem problem = random_problem(*spec, kShape, 5);
  OutputGradients given = random_output_gradients(*spec, problem.shape, 6);
  if (hostility.to_inputs != nullptr) hostility.to_inputs(*spec, problem);
  if (hostility.to_gradients != nullptr) hostility.to_gradients(*spec, given);
  const auto plain = verification::plain_backward(*spec, problem, given);
  const BackwardOracle by_definition = oracle_backward(*spec, problem, given),
                       of_given = oracle_backward(*spec, problem, plain.forward, given,
                                                  whole_sample(problem));
  ASSERT_TRUE(hostile::holds(spec->dtype, by_definition));
  const auto faulty =
      verification::plain_backward(*spec, problem, given, likeliest_key(*spec, problem));
  for (const BackwardOracle* oracle : {&by_definition, &of_given}) {
    SCOPED_TRACE(oracle == &of_given ? "of what it was given" : "by definition");
    EXPECT_EQ(judge(oracle->dq, plain.dq).wrong, "");
    EXPECT_EQ(judge(oracle->dk, plain.dk).wrong, "");
    EXPECT_EQ(judge(oracle->dv, plain.dv).wrong, "");
    EXPECT_GT(std::max({judge(oracle->dq, faulty.dq).worst, judge(oracle->dk, faulty.dk).worst,
                        judge(oracle->dv, faulty.dv).worst}),
              1);
  }
}

INSTANTIATE_TEST_SUITE_P(Backward, HostileLimits,
                         testing::Combine(testing::Values("bf16", "fp16"), testing::Values(64, 128),
                                          testing::Values("true", "causal"),
                                          testing::ValuesIn(hostile::kHostilities)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_d{}_{}", std::get<3>(info.param).name,
                                              std::get<0>(info.param), std::get<1>(info.param),
                                              std::get<2>(info.param));
                         });

}  // namespace
}  // namespace attune
