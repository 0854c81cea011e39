#include "tuner/isolation/tune_isolated.hpp"

#include "generator/plan/mask_data.hpp"
#include "tuner/isolation/workers_cache.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/run_search.hpp"

namespace attune {

Result<TuneResult> tune_isolated(const WorkerProblem& problem, const AttentionSpec& spec,
                                 const Device& device, std::span<Compiler* const> compilers,
                                 Store& store, IsolatedExecutor& executor,
                                 const TuneOptions& options, const TuneObserver& progress) {
  const WorkersCache cache(store);
  WorkerProblem of_pass = problem;
  of_pass.cache = cache.path();
  of_pass.pass = options.pass;
  of_pass.samples = described_samples(spec);
  of_pass.sequences = sequence_words(spec);
  executor.open(
      of_pass,
      [&](const Candidate& candidate) {
        return candidate_build_digest(spec, candidate.plan,
                                      *compilers[static_cast<std::size_t>(candidate.compiler)]);
      },
      [&](const Candidate& candidate) {
        return cost_us(spec, candidate.plan, problem.shape, device.facts());
      });
  return run_search(spec, problem.shape, device, store, executor,
                    static_cast<int>(compilers.size()), options, progress);
}

}  // namespace attune
