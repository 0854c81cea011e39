// A search on a host's own data, in a host's process: everything that runs a candidate is in
// another one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/capi/tasks.hpp"
#include "runtime/engine/dispatcher.hpp"
#include "tuner/isolation/protocol.hpp"
#include "tuner/measure/given_launch.hpp"
#include "tuner/tuner.hpp"

namespace attune {

struct HostProgress {
  int done = 0, total = 0;  // candidates
  double seconds = 0;
  double best_us = 0;
  std::string best_plan;
};

struct HostTuningRequest {
  std::shared_ptr<const AttentionSpec> spec;
  SpecId id;
  std::string yaml;  // of `spec`
  std::unique_ptr<GivenLaunch> launch;
  Pass pass = Pass::kForward;
  double budget_seconds = 0;  // since `began`; 0: none
  std::chrono::steady_clock::time_point began;
  int max_candidates = 0, compile_threads = 0;  // as of TuneOptions
  std::vector<std::string> worker;              // command
  // Returns false to stop; may be empty. On the thread that tunes.
  std::function<bool(const HostProgress&)> progress;
};

enum class HostTuningState { kRunning, kDone, kStopped, kFailed };
struct HostTuningResult {
  HostTuningState state = HostTuningState::kRunning;
  int measured = 0, rejected = 0, from_cache = 0;
  double seconds = 0;
  double best_us = 0;
  double before_us = 0;  // of the plan that a launch had; 0: not measured
  MaskData data;         // of the launch
  // Point into the tuning; "" while there is none.
  const char* plan = "";
  const char* compiler = "";
};

// The file of a runtime's that is written to; empty: there is none.
std::string user_file(const Overlay& cache);

// What the tensors of a launch are like, its scalars being known. {} where none decides which tiles
// live.
MaskData data_of(const AttentionSpec& spec, const GivenLaunch& launch);

// Thread-safe.
class HostTuning final : public RuntimeTask {
 public:
  // The dispatcher is used until run() returns or end() has.
  HostTuning(Dispatcher& dispatcher, HostTuningRequest request);
  ~HostTuning() override { end(); }

  // One of them, once: on this thread, or on one of its own.
  void run() noexcept;
  void start();

  void cancel() { cancelled_ = true; }
  // Returns when run() has; its error.
  Status wait() const;
  HostTuningResult result() const;
  bool is_over() const override;
  void end() noexcept override;

 private:
  Result<HostTuningState> search();
  Result<HostTuningState> search_in_steps(const WorkerProblem& problem,
                                          std::span<Compiler* const> compilers, Store& store);
  double measured_us(const Store& store, const ProblemShape& shape, const std::string& plan) const;
  void take_over();
  bool note(const TuneProgress& progress);
  const char* kept(const std::string& text);
  double seconds() const;

  Dispatcher& dispatcher_;
  const HostTuningRequest request_;
  AttentionSpec spec_;  // with the launch's tensors as its samples
  const MaskData data_;
  std::atomic<bool> cancelled_{false}, ending_{false};
  mutable std::mutex mutex_;  // guards the next five
  mutable std::condition_variable over_;
  bool is_over_ = false;
  Status status_ = ok_status();
  HostTuningResult result_;
  std::set<std::string> texts_;  // that results point to
  std::mutex thread_mutex_;      // guards the thread
  std::thread thread_;
};

}  // namespace attune
