// Finds the fastest verified plan of a spec for a shape, and stores every result as it comes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/engine.hpp"

namespace attune {

struct TuneOptions {
  int max_candidates = 0;   // 0: all that the search asks for
  int compile_threads = 0;  // 0: the machine's cores
  double noise_fraction = 0.01;  // within it, fewer resources win
  bool force = false;       // measure again what is already measured
};

enum class TuneState { kCompiling, kVerifying, kMeasuring, kDone };
struct TuneProgress {
  TuneState state = TuneState::kCompiling;
  int done = 0, total = 0;
  std::string best_plan;
  double best_us = 0;
  double eta_seconds = 0;
};

struct TuneResult {
  KernelPlan plan;
  double median_us = 0;
  int candidates = 0, measured = 0, rejected = 0, from_cache = 0;
  double seconds = 0;
};

// `progress` is called from this thread and returns false to stop: what was measured is stored already.
Result<TuneResult> tune(const AttentionSpec& spec, const ProblemShape& shape, Device& device, Compiler& compiler, Store& store,
                        const TuneOptions& options, const std::function<bool(const TuneProgress&)>& progress);

}  // namespace attune
