// What the oracle of gradients must do on any device; a test hands over where it runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/reference/gradient_oracle.hpp"
#include "tests/verification/gradient_specs.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::verification {

// A score function's error is a bound of its own on the host, and what its ends differ by on the
// device: `has_score`.
inline void expect_alike(const Expected& device, const Expected& host, bool has_score) {
  ASSERT_EQ(device.values.size(), host.values.size()) << host.name;
  double worst = 0, least = 1, most = 1;
  for (std::size_t i = 0; i < host.values.size(); ++i) {
    const double limit = host.limits[i];
    worst = std::max(worst, std::abs(device.values[i] - host.values[i]) / limit);
    if (!(std::abs(device.values[i] - host.values[i]) <= limit)) worst = 1e9;  // NaN
    // Below what a subnormal may be off by there is nothing but that.
    if (limit < 1e-30) continue;
    least = std::min(least, device.limits[i] / limit);
    most = std::max(most, device.limits[i] / limit);
  }
  EXPECT_LT(worst, 0.2) << host.name << ": off by so much of what is allowed";
  EXPECT_GT(least, has_score ? 0.5 : 0.9) << host.name << ": limits";
  EXPECT_LT(most, has_score ? 2.5 : 1.1) << host.name << ": limits";
}

// All rows, with what is learned, and some of them.
inline void check_gradient_oracle(Device& device, GradientOracle& oracle, const AttentionSpec& spec,
                                  const LoadedKernel& forward, const ProblemShape& shape,
                                  std::uint64_t seed) {
  const bool has_score = spec.score != nullptr;
  const bool rounds_p = arithmetic_of(device.facts().target) == Arithmetic::kMatrixUnit;
  const HostProblem problem = random_problem(spec, shape, seed);
  const auto made = BackwardProblem::make(device, spec, problem, forward, seed);
  ASSERT_TRUE(made.ok()) << render(made.error());
  const auto given = (*made)->forward_output();
  ASSERT_TRUE(given.ok()) << render(given.error());
  for (const BackwardSample& sample :
       {whole_sample(problem), stratified_sample(problem, 1000, 16, seed)}) {
    const auto answer = oracle.answer((*made)->params(), sample);
    ASSERT_TRUE(answer.ok()) << render(answer.error());
    const auto found = oracle.download(*answer);
    ASSERT_TRUE(found.ok()) << render(found.error());
    const BackwardOracle expected =
        oracle_backward(spec, problem, *given, (*made)->output_gradients(), sample, rounds_p);
    expect_alike(found->dq, expected.dq, has_score);
    expect_alike(found->dk, expected.dk, has_score);
    expect_alike(found->dv, expected.dv, has_score);
    expect_alike(found->sink, expected.sink, has_score);
    ASSERT_EQ(found->tensors.size(), expected.tensors.size());
    for (std::size_t slot = 0; slot < expected.tensors.size(); ++slot)
      expect_alike(found->tensors[slot], expected.tensors[slot], has_score);
  }
}

}  // namespace attune::verification
