// What tune() and tune_isolated() share: the problem's plans, the device's lock, the clock.
#pragma once

#include "tuner/executor.hpp"
#include "tuner/tuner.hpp"

namespace attune {

Result<TuneResult> run_search(const AttentionSpec& spec, const ProblemShape& shape,
                              const Device& device, Store& store, Executor& executor, int compilers,
                              const TuneOptions& options, const TuneObserver& progress);
// Draws other inputs at every run; the search does not depend on them.
std::uint64_t fresh_seed();

}  // namespace attune
