// Gradients of shapes that are too large for the CPU's oracle.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/reference/gradient_oracle.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tuner/measure/backward_problems.hpp"

namespace attune::gpu_test {

// A problem as the tuner times it, and what the GPU's oracle expects of the rows that the tuner
// takes: of 2^30 pairs of a query and a key, and below all of them.
class JudgedGradients {
 public:
  // `forward` makes O and LSE. Spec and oracle must outlive the result.
  static Result<std::unique_ptr<JudgedGradients>> make(const AttentionSpec& spec,
                                                       const ProblemShape& shape,
                                                       const LoadedKernel& forward,
                                                       GradientOracle& oracle, std::uint64_t seed) {
    Device& device = KernelBank::instance().device();
    ATT_TRY(auto problem, BackwardProblem::for_timing(device, spec, shape, forward, seed));
    ATT_TRY(auto answer, oracle.answer(problem->params(), rows_for_device(spec, shape, seed)));
    return std::unique_ptr<JudgedGradients>(
        new JudgedGradients(std::move(problem), oracle, std::move(answer)));
  }

  // Of a launch on outputs and workspace filled with NaN.
  Result<Verdict> of(const LoadedKernel& kernel) {
    ATT_CHECK(problem_->poison());
    ATT_CHECK(problem_->launch(kernel, nullptr));
    ATT_CHECK(problem_->check_canaries());
    return oracle_.judge(answer_, problem_->params());
  }

 private:
  JudgedGradients(std::unique_ptr<BackwardProblem> problem, GradientOracle& oracle,
                  GradientOracle::Answer answer)
      : problem_(std::move(problem)), oracle_(oracle), answer_(std::move(answer)) {}

  const std::unique_ptr<BackwardProblem> problem_;
  GradientOracle& oracle_;
  const GradientOracle::Answer answer_;
};

}  // namespace attune::gpu_test
