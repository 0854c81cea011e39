// The order in which candidates are tried: the cost model's first guesses, then the neighbours of
// what proved best.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cache/store.hpp"
#include "tuner/executor.hpp"
#include "tuner/tuner.hpp"

namespace attune {

struct SearchProblem {
  MeasurementKey key;
  std::vector<KernelPlan> plans;        // all legal ones, the cost model's cheapest first
  int compilers = 1;                    // that the executor has; the first builds every candidate,
                                        // the others those that may win
  bool compile_while_measuring = true;  // false where compiling disturbs the clock: on the CPU
};

// Seconds since some moment.
using Clock = std::function<double()>;

// Runs the search. Every measurement and rejection is in `store` before the next step; what `store`
// holds already is not done again, so that a search that was killed goes on where it was. A store
// that fails to remember is no reason to stop. Deterministic up to the times measured.
Result<TuneResult> search(const SearchProblem& problem, Executor& executor, Store& store,
                          const TuneOptions& options, const Clock& clock,
                          const TuneObserver& observer);

// Candidates that a search asks for at most of so many legal plans where the model's first guess
// proves good and nobody says how many.
std::size_t search_bound(std::size_t plans);

}  // namespace attune
