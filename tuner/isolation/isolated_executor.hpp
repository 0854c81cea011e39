// Candidates in worker processes: one that hangs, faults or crashes costs itself and a restart.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tuner/executor.hpp"
#include "tuner/isolation/child_process.hpp"
#include "tuner/isolation/launch_deadline.hpp"
#include "tuner/isolation/protocol.hpp"

namespace attune {

struct IsolationOptions {
  std::vector<std::string> worker_command;  // empty: this program, `worker`
  std::chrono::milliseconds compile_deadline{120'000};
  // Beside what launches are expected to take.
  std::chrono::milliseconds run_deadline{20'000};
  // For opening the device and for the oracle, which computes on the CPU.
  std::chrono::milliseconds prepare_deadline{600'000};
};

// Workers are started when first needed and live as long as the object, over many problems.
class IsolatedExecutor final : public Executor {
 public:
  using Digest = std::function<Result<std::string>(const Candidate&)>;
  // Microseconds of a launch, by a cost model.
  using ExpectedTime = std::function<double(const Candidate&)>;

  explicit IsolatedExecutor(IsolationOptions options = {});
  ~IsolatedExecutor() override;
  // Turns to another problem. `digest` is Executor::build_digest; it and `expected` run in this
  // process. A launch that takes much longer than expected is a hang; without `expected`, one that
  // takes longer than the deadline.
  void open(const WorkerProblem& problem, Digest digest, ExpectedTime expected = {});

  Status prepare() override;
  Result<std::string> build_digest(const Candidate& candidate) override {
    return digest_(candidate);
  }
  Result<CompiledFacts> compile(const Candidate& candidate) override;
  Status verify(const Candidate& candidate) override;
  Result<double> time_us(const Candidate& candidate) override;
  void release(const Candidate& candidate) override;
  std::string conditions() override;
  // Times that a measuring worker had to be replaced.
  int restarts() const { return restarts_; }

 private:
  // A process, and the problem it has open.
  struct Worker;
  Status make_open(Worker& worker, bool with_device);
  Result<WorkerReply> ask(Worker& worker, const WorkerRequest& request,
                          std::chrono::milliseconds deadline, bool with_device);
  Result<WorkerReply> measure(WorkerRequest::Operation operation, const Candidate& candidate,
                              int launches);
  double expected_us(const Candidate& candidate) const {
    return expected_ ? expected_(candidate) : 0;
  }

  const IsolationOptions options_;
  Digest digest_;
  ExpectedTime expected_;
  LaunchDeadline deadline_;  // of problem_
  // By the last worker's prepare(): verify() may have to ask the oracle once more.
  std::chrono::milliseconds prepare_took_{0};
  WorkerProblem problem_;
  int generation_ = 0;  // of problem_
  int restarts_ = 0;
  std::unique_ptr<Worker> measuring_;
  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace attune
