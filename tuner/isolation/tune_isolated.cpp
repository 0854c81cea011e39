#include "tuner/isolation/tune_isolated.hpp"

#include "tuner/measure/local_executor.hpp"
#include "tuner/run_search.hpp"

namespace attune {

Result<TuneResult> tune_isolated(const WorkerProblem& problem, const AttentionSpec& spec,
                                 const Device& device, const Compiler& compiler, Store& store,
                                 IsolatedExecutor& executor, const TuneOptions& options,
                                 const TuneObserver& progress) {
  executor.open(problem, [&](const KernelPlan& plan) {
    return candidate_build_digest(spec, plan, compiler);
  });
  return run_search(spec, problem.shape, device, store, executor, options, progress);
}

}  // namespace attune
