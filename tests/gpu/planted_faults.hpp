// The faults that a verification of the GPU families must find.
#pragma once

#include "generator/plan/plan.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/problems.hpp"

namespace attune::planted {

struct GpuFault {
  Fault fault;
  bool needs_running_maximum = false;  // it is in code that a frozen maximum seldom runs
};

// Those that a family's kernels can have in such a problem.
std::vector<GpuFault> gpu_faults(Family family, const Site& site);

}  // namespace attune::planted
