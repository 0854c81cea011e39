// The backward pass' problems for an executor.
#pragma once

#include "runtime/reference/gradient_oracle.hpp"
#include "tuner/measure/backward_problem.hpp"

namespace attune {

// The rows of a shape, not of packed sequences, that a GPU's oracle can afford in about a second.
BackwardSample rows_for_device(const AttentionSpec& spec, const ProblemShape& shape,
                               std::uint64_t seed);

// On a GPU an oracle of its own judges the whole shape, with the numbers that are timed, in place
// of the first of verification_shapes(): all of it or, where that is much, rows of dQ, and of dK
// and dV, of every 16, others each time. The CPU's oracle judges the others, and all where the
// GPU's does not work, as far as it can afford them: with one batch entry, K/V head and at most
// eight query heads where that is too much, and rows of every 16 or 64 unless the problem is small.
// Gradients of tensors are judged where all rows are. O and LSE are those of a forward kernel,
// which the gradients are judged as functions of. The q, k, v and tensors of a host's small launch
// are a problem more of the CPU's oracle.
class BackwardProblems final : public PassProblems {
 public:
  explicit BackwardProblems(const ProblemSource& source) : source_(source) {}

  Result<TimedProblem*> timed() override;
  Result<std::vector<Check*>> checks() override;

 private:
  // The forward pass' best known plan, built and loaded.
  Result<const LoadedKernel*> forward();
  // `own`: null for the timed problem.
  Result<std::unique_ptr<Check>> check_on_device(std::unique_ptr<BackwardProblem> own,
                                                 std::uint64_t seed);

  const ProblemSource source_;
  std::unique_ptr<LoadedKernel> forward_;
  std::unique_ptr<BackwardProblem> timed_;
  std::unique_ptr<GradientOracle> oracle_;      // null where there is no GPU
  std::vector<std::unique_ptr<Check>> checks_;  // may refer to timed_ and oracle_
};

}  // namespace attune
