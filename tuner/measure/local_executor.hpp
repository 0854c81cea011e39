// Candidates of one pass of a problem in this process, on one device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "tuner/executor.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {

// The parts of Executor that need no device. `store` may be null; so may `image`, which takes the
// code.
Result<std::string> candidate_build_digest(const AttentionSpec& spec, const KernelPlan& plan,
                                           const Compiler& compiler);
Result<CompiledFacts> compile_candidate(const AttentionSpec& spec, const KernelPlan& plan,
                                        Compiler& compiler, Store* store,
                                        std::vector<std::uint8_t>* image);

// verify() asks again on other numbers before it says "miscompute"; where they come out right it
// says "doubtful". A candidate that faults takes the device's context along: it is condemned, and
// every later call fails with "device-lost".
class LocalExecutor final : public Executor {
 public:
  // Everything but the span must outlive it. Candidate::compiler indexes `compilers`. `store`, for
  // compiled code, may be null. `seed` draws inputs of verification; another one each time finds
  // more. `launch`: a host's, of `shape`, to measure on; null: drawn numbers.
  LocalExecutor(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                std::span<Compiler* const> compilers, Store* store, std::uint64_t seed,
                Pass pass = Pass::kForward, const GivenLaunch* launch = nullptr);
  ~LocalExecutor() override;

  // Draws the inputs and asks the oracle; "memory-short" where they do not fit.
  Status prepare() override;
  Result<std::string> build_digest(const Candidate& candidate) override;
  Result<CompiledFacts> compile(const Candidate& candidate) override;
  Status verify(const Candidate& candidate) override;
  Result<double> time_us(const Candidate& candidate) override;
  void release(const Candidate& candidate) override;
  std::string conditions() override { return device_.conditions(); }

 private:
  Result<Verdict> verdict(const LoadedKernel& kernel, Check& check);
  Status make_timed();
  Compiler& compiler_of(const Candidate& candidate) const {
    return *compilers_[static_cast<std::size_t>(candidate.compiler)];
  }
  Result<const LoadedKernel*> loaded(const Candidate& candidate);
  // OK, or the status as the candidate's error, having looked whether the device survived.
  Status judged(Status status, const char* reason);

  const AttentionSpec& spec_;
  Device& device_;
  const std::vector<Compiler*> compilers_;
  Store* store_;
  std::mutex mutex_;  // guards images_
  std::map<Candidate, std::vector<std::uint8_t>> images_;
  std::map<Candidate, std::unique_ptr<LoadedKernel>> kernels_;
  const std::unique_ptr<PassProblems> problems_;
  TimedProblem* timed_ = nullptr;
  DeviceBuffer flush_;
  bool lost_ = false;
};

}  // namespace attune
