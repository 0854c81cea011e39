// What of the workspace a kernel promises to be enough, whichever plan it runs later.
#pragma once

#include <vector>

#include "generator/plan/launch.hpp"
#include "generator/plan/plan.hpp"

namespace attune {

// widest_workspace(), but that sums of dQ of all heads at a time, several times what heads under
// way have, are only for plans that may come: `first`, with which the kernel begins, whether it is
// offered or not, and those that by the cost model take little longer than the fastest at `shape`.
std::vector<WorkspaceRegion> promised_workspace(const AttentionSpec& spec, const KernelPlan& first,
                                                const ProblemShape& shape,
                                                const DeviceFacts& device);

}  // namespace attune
