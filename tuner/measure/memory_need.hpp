// How much memory a problem takes, known before any of it is filled.
#pragma once

#include <cstdint>

#include "generator/plan/plan.hpp"
#include "generator/support/result.hpp"

namespace attune {

// At their peak, without a kernel's workspace. Doubles, because the largest shape overflows
// integers.
struct MemoryNeed {
  double host_bytes = 0;
  double device_bytes = 0;  // main memory too, on the CPU
};

// random_problem() alone.
MemoryNeed need_of_values(const AttentionSpec& spec, const ProblemShape& shape);
// DeviceProblem::upload() of a random problem, and what an oracle says of `rows` of its output.
MemoryNeed need_of_run(const AttentionSpec& spec, const ProblemShape& shape, double rows);
// LocalExecutor on `device`: the problem that is timed and those that are verified.
MemoryNeed need_of_timing(const AttentionSpec& spec, const ProblemShape& shape,
                          const DeviceFacts& device, Pass pass);
// BackwardProblem with the oracle of the whole problem.
MemoryNeed need_of_backward(const AttentionSpec& spec, const ProblemShape& shape);

// "memory-short" (kBadInput), which says what the shape takes and what there is; OK when it fits.
// `available_bytes` of main memory: available_memory_bytes(). Of the device's memory all counts as
// free.
Status check_fits(const MemoryNeed& need, const ProblemShape& shape, const DeviceFacts& device,
                  std::int64_t available_bytes);

}  // namespace attune
