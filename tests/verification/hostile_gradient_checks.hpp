// What gradients under hostile magnitudes must be on any device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/reference/element_bits.hpp"
#include "runtime/support/problem_layout.hpp"
#include "tests/verification/backward_kernels.hpp"
#include "tests/verification/hostile_gradients.hpp"
#include "tuner/measure/arrangement.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune::hostile {

// In place of the dO that the problem was made with.
inline Status replace_d_o(Device& device, const AttentionSpec& spec, const ProblemShape& s,
                          const att::LaunchParams& params, const std::vector<double>& d_o) {
  const Arrangement arrangement{s.batch, s.heads, s.q_len, spec.head_dim_v, params.d_o_stride};
  const auto bytes = encode(spec.dtype, arrangement.to_device(d_o));
  return device.copy_to_device(const_cast<void*>(params.d_o), bytes.data(), bytes.size());
}

// By the definition, and as functions of the O and LSE that a kernel was given, which is what the
// tuner judges by: the limits of that have no room for what the forward pass did.
inline void check_gradients(const verification::BackwardKernels& kernels,
                            const Hostility& hostility, const ProblemShape& shape,
                            std::uint64_t seed) {
  const AttentionSpec& spec = kernels.spec;
  HostProblem problem = random_problem(spec, shape, seed);
  if (hostility.to_inputs != nullptr) hostility.to_inputs(spec, problem);
  const auto made = BackwardProblem::make(kernels.device, spec, problem, kernels.forward, seed);
  ASSERT_TRUE(made.ok()) << render(made.error());
  OutputGradients given = (*made)->output_gradients();
  if (hostility.to_gradients != nullptr) hostility.to_gradients(spec, given);
  const Status replaced = replace_d_o(kernels.device, spec, shape, (*made)->params(), given.d_o);
  ASSERT_TRUE(replaced.ok()) << render(replaced.error());
  const auto forward = (*made)->forward_output();
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const bool rounds_p = kernels.arithmetic == Arithmetic::kMatrixUnit;
  const BackwardOracle by_definition = oracle_backward(spec, problem, given, rounds_p);
  const BackwardOracle of_given =
      oracle_backward(spec, problem, *forward, given, whole_sample(problem), rounds_p);
  ASSERT_TRUE(holds(spec.dtype, by_definition)) << "the numbers overflow";
  for (std::size_t i = 0; i < kernels.backward.size(); ++i) {
    const auto gradients = (*made)->run(*kernels.backward[i]);
    ASSERT_TRUE(gradients.ok()) << render(gradients.error());
    EXPECT_EQ(wrong_gradient(*gradients, by_definition), "") << "by definition, kernel " << i;
    EXPECT_EQ(wrong_gradient(*gradients, of_given), "") << "of what it was given, kernel " << i;
  }
}

}  // namespace attune::hostile
