// Finds the fastest verified plan of a spec for a shape, and stores every result as it comes.
// docs/tuning.md.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.hpp"

namespace attune {

struct TuneOptions {
  Pass pass = Pass::kForward;
  int max_candidates = 0;        // 0: all that the search asks for
  int compile_threads = 0;       // 0: as many as this process may use cores
  double noise_fraction = 0.01;  // medians that differ by less may be equal
  bool force = false;            // measure again what is already measured
  bool exhaustive = false;       // ask for every legal plan; what the search is judged against
  std::vector<KernelPlan> contenders = {};  // to ask for before others
  bool to_the_end = false;  // all race all rounds: of few, whose times a choice goes by
  // What the tensors are like that decide a mask; else mask_data() of the spec.
  std::optional<MaskData> data = {};
};

enum class TuneState { kWaiting, kCompiling, kVerifying, kMeasuring, kDone };
// kWaiting: for another tuner, which measures on the device.
struct TuneProgress {
  TuneState state = TuneState::kCompiling;
  int done = 0, total = 0;  // candidates; the total grows while the search finds more to ask for
  std::string best_plan, best_compiler;
  double best_us = 0;
  double eta_seconds = 0;
  std::string data;  // label of what the mask reads, where that is said: each kind is a search
};
// Returns false to stop.
using TuneObserver = std::function<bool(const TuneProgress&)>;

struct TuneResult {
  KernelPlan plan;
  std::string compiler;  // identity of the one that builds it fastest
  double median_us = 0;
  int candidates =
      0;  // that the search asked for: measured + rejected + from_cache when it was not stopped
  int measured = 0, rejected = 0, from_cache = 0;
  double seconds = 0;
  bool stopped = false;  // by the observer; the plan is the best so far
  // Why the store did not take all of it: a full disk, say. What it did not take is lost.
  std::optional<Error> not_stored;
};

// Where nothing is said of tensors that decide a mask, runs `tune_once` on every one of
// plausible_specs(), and on each again with the winners and first guesses of all as contenders.
// Where all is said, on that, and on each of varied_specs() with what was nearly the fastest and
// the first guesses alone; then what was faster than the first guess on all of them on each of
// confirming_specs(), beside that guess. The result is the plan that loses least, on the worst kind
// of the former and on all of the latter on average, with its time on the first kind; in either the
// first guess keeps its place where it can (cache/rank_kinds.hpp). The counts are of all runs.
using TuneOnce = std::function<Result<TuneResult>(const AttentionSpec&, const TuneOptions&)>;
Result<TuneResult> tune_on_plausible_data(const AttentionSpec& spec, const ProblemShape& shape,
                                          const Device& device, Store& store,
                                          const TuneOptions& options, const TuneOnce& tune_once);

// In this process. The first compiler builds every candidate, the others the finalists as well.
// `progress` is called from this thread; what was measured before it said stop is
// stored. "tune-no-plan" when no candidate survived, "tune-stopped" when stopped before the first
// did.
Result<TuneResult> tune(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                        std::span<Compiler* const> compilers, Store& store,
                        const TuneOptions& options, const TuneObserver& progress);

}  // namespace attune
