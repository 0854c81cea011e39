// What `tune` and `sweep` share: tuning one problem on one device, and saying how it goes.
#pragma once

#include <string>
#include <vector>

#include "cli/spec_source.hpp"
#include "cli/workbench.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/tuner.hpp"

namespace attune::cli {

struct TuningOptions {
  TuneOptions search;
  bool in_process = false;
};
void add_tuning(CommandLine& line, TuningOptions& options);

struct TuningProblem {
  LoadedSpec loaded;
  ProblemShape shape;
  Pass pass = Pass::kForward;
};
// Every spec with --shape, else with each of its tune shapes, each for --pass, else for the passes
// that the spec lists.
Result<std::vector<TuningProblem>> tuning_problems(const Options& options);

// One device, its compilers and its workers, which are kept over many problems. One thread at a
// time.
class DeviceTuner {
 public:
  // `options` name the device and compilers.
  DeviceTuner(Options options, TuningOptions tuning);
  Result<Device*> device() { return bench_.device(); }
  Result<TuneResult> tune(const TuningProblem& problem, Store& store, const TuneObserver& observer);

 private:
  const Options options_;
  const TuningOptions tuning_;
  Workbench bench_;
  IsolatedExecutor workers_;
};

// "measuring, 3.1 s left, best 812.3 us: sm90a forward ...".
std::string progress_text(const TuneProgress& progress, const AttentionSpec& spec);

}  // namespace attune::cli
