// IsolatedExecutor with workers of a command that may be of another build of Attune.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "tuner/isolation/isolated_executor.hpp"

namespace attune {

// What a worker compiled must be what this process would have: else times would be remembered of
// another source. "worker-version" (kUnavailable).
class CheckedExecutor final : public Executor {
 public:
  explicit CheckedExecutor(const std::vector<std::string>& command)
      : command_(command.front()), executor_({.worker_command = command}) {}
  void open(const WorkerProblem& problem, IsolatedExecutor::Digest digest,
            IsolatedExecutor::ExpectedTime expected) {
    executor_.open(problem, std::move(digest), std::move(expected));
  }

  Status prepare() override { return executor_.prepare(); }
  Result<std::string> build_digest(const Candidate& candidate) override {
    return executor_.build_digest(candidate);
  }
  Result<CompiledFacts> compile(const Candidate& candidate) override {
    auto facts = executor_.compile(candidate);
    const auto digest = executor_.build_digest(candidate);
    if (!facts.ok() || !digest.ok() || facts->build_digest == *digest) return facts;
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "worker-version",
                 .message = fmt::format("`{}` is of another build of Attune", command_),
                 .hint = "install the command and the library together"};
  }
  Status verify(const Candidate& candidate) override { return executor_.verify(candidate); }
  Result<double> time_us(const Candidate& candidate) override {
    return executor_.time_us(candidate);
  }
  void release(const Candidate& candidate) override { executor_.release(candidate); }
  std::string conditions() override { return executor_.conditions(); }

 private:
  const std::string command_;
  IsolatedExecutor executor_;
};

}  // namespace attune
