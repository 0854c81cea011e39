// tune(), with every compile and every launch in worker processes.
#pragma once

#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/tuner.hpp"

namespace attune {

// `problem.spec_yaml` is the text of `spec`; its pass is taken from `options`. `device` and
// `compilers` are those that the workers open too, here only asked what they are. The executor's
// workers are reused from call to call. Holds the device's lock. Every other word is tune()'s.
Result<TuneResult> tune_isolated(const WorkerProblem& problem, const AttentionSpec& spec,
                                 const Device& device, std::span<Compiler* const> compilers,
                                 Store& store, IsolatedExecutor& executor,
                                 const TuneOptions& options, const TuneObserver& progress);

}  // namespace attune
