// Runs a loaded kernel on a HostProblem, with poisoned outputs and canaries around every buffer.
#pragma once

#include <string>

#include "runtime/device/device.hpp"
#include "runtime/reference/oracle.hpp"

namespace attune::testing_support {

// How q, k, v and o lie in memory, beyond the spec's layout.
struct Placement {
  int padding = 0;  // elements between the rows of one sequence position, a multiple of 16 bytes
};

// The outputs as the kernel wrote them. The error says when a launch failed or a canary died. `lse`
// is left out of the launch, and of the result, when `with_lse` is false.
Result<HostOutput> run_kernel(Device& device, const LoadedKernel& kernel, const AttentionSpec& spec,
                              const HostProblem& problem, const Placement& placement = {},
                              bool with_lse = true);

}  // namespace attune::testing_support
