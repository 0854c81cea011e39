// The forward pass' problems for an executor.
#pragma once

#include "runtime/reference/device_oracle.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {

// On a GPU its own oracle judges the whole shape in place of the first of verification_shapes(). Of
// each problem, rows of every 16 queries of every head are looked at, others each time. A host's
// launch is a problem more on the CPU, where main memory holds it eight bytes an element; on a GPU
// it is the one whose whole shape is judged.
class ForwardProblems final : public PassProblems {
 public:
  explicit ForwardProblems(const ProblemSource& source) : source_(source) {}

  Result<TimedProblem*> timed() override;
  Result<std::vector<Check*>> checks() override;

 private:
  Status make_timed();
  // `own`: null for the timed problem.
  Result<std::unique_ptr<Check>> check_on_device(std::unique_ptr<DeviceProblem> own,
                                                 std::uint64_t seed);
  Result<std::unique_ptr<Check>> check_on_host(const HostProblem& problem, std::uint64_t seed);
  bool can_afford_launch() const;

  const ProblemSource source_;
  std::unique_ptr<DeviceProblem> timed_;
  std::unique_ptr<DeviceOracle> oracle_;        // null where there is no GPU
  std::vector<std::unique_ptr<Check>> checks_;  // may refer to timed_ and oracle_
};

}  // namespace attune
