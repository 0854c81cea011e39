// Compiles candidates on threads of its own while the device measures others.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "tuner/executor.hpp"

namespace attune {

class CompileAhead {
 public:
  CompileAhead(Executor& executor, int threads);
  // Waits for the compiles that are running; those still queued are dropped.
  ~CompileAhead();
  CompileAhead(const CompileAhead&) = delete;
  CompileAhead& operator=(const CompileAhead&) = delete;

  // Queues in order, before what else waits, what is not compiled or being compiled. What was taken
  // may be asked for again.
  void submit(std::span<const Candidate> candidates);
  // The next finished one of `candidates`, which must all have been submitted and not taken yet;
  // blocks.
  std::pair<Candidate, Result<CompiledFacts>> take_any(std::span<const Candidate> candidates);

 private:
  void work();

  Executor& executor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Candidate> queue_;
  std::map<Candidate, std::optional<Result<CompiledFacts>>> results_;
  std::vector<std::jthread> threads_;
};

}  // namespace attune
