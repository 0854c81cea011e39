// The backward pass' problems for an executor.
#pragma once

#include "tuner/measure/backward_problem.hpp"

namespace attune {

// What the fp64 oracle can afford of verification_shapes(): with one batch entry, K/V head and at
// most eight query heads where that is too much. All gradients of a problem that is small, those of
// tensors among them; else rows of dQ, and of dK and dV, of every 16 or 64, others each time. O and
// LSE are those of a forward kernel, which the gradients are judged as functions of. The q, k, v
// and tensors of a host's small launch are a problem more.
class BackwardProblems final : public PassProblems {
 public:
  explicit BackwardProblems(const ProblemSource& source) : source_(source) {}

  Result<TimedProblem*> timed() override;
  Result<std::vector<Check*>> checks() override;

 private:
  // The forward pass' best known plan, built and loaded.
  Result<const LoadedKernel*> forward();

  const ProblemSource source_;
  std::unique_ptr<LoadedKernel> forward_;
  std::unique_ptr<BackwardProblem> timed_;
  std::vector<std::unique_ptr<Check>> checks_;
};

}  // namespace attune
