// Many problems on many GPUs, killed and resumed at will. docs/tuning.md.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "tuner/sweep/manifest.hpp"
#include "tuner/tuner.hpp"

namespace attune {

// How one problem ended.
struct SweepEntry {
  std::string digest;  // of the problem
  std::string error;   // empty: tuned
  std::string plan;
  double median_us = 0;
  int measured = 0, rejected = 0, from_cache = 0;
  double seconds = 0;
};

struct SweepProgress {
  int done = 0, failed = 0, total = 0;  // problems of the shard
  int device = 0;                       // that `problem` and `tuning` are about
  const SweepProblem* problem = nullptr;
  TuneProgress tuning;
  double eta_seconds = 0;
};
// Called from one thread at a time; false stops the sweep after the current step of every device.
using SweepObserver = std::function<bool(const SweepProgress&)>;

// Tunes one problem on device number `device` into `store`. Called from one thread a device.
using SweepTuner = std::function<Result<TuneResult>(const SweepProblem&, int device, Store& store,
                                                    const TuneObserver&)>;

struct SweepOptions {
  std::string directory;
  Shard shard;
  int devices = 1;     // that take problems of the shard in turn
  bool retry = false;  // problems that failed before
};

struct SweepOutcome {
  int tuned = 0, failed = 0, before = 0;  // `before`: by earlier runs
  bool stopped = false;
};

// Runs what the shard has left. A problem that fails costs itself; the sweep ends early only when
// its files cannot be written, or when stopped. "sweep-shard-busy": another process runs the shard.
Result<SweepOutcome> run_sweep(const Manifest& manifest, const SweepOptions& options,
                               const SweepTuner& tuner, const SweepObserver& observer);

// How every problem of the manifest stands, from the journals in the directory; absent: nobody got
// to it. A problem that was tuned once is tuned, whatever failed before.
std::map<std::string, SweepEntry> sweep_entries(const std::string& directory);

// The union of all workers' files, added to `target`. Returns the number of rows it gained. May be
// repeated, also while the sweep runs.
Result<int> merge_sweep(const std::string& directory, const std::string& target);

}  // namespace attune
