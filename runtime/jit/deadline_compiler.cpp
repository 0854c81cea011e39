#include "runtime/jit/deadline_compiler.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace attune {
namespace {

constexpr const char* kHint =
    "a shorter mask or score compiles sooner; `attune tune` compiles in processes that it can end";

Error failed(std::string_view id, std::string message) {
  return {.kind = ErrorKind::kFailed,
          .id = std::string(id),
          .message = std::move(message),
          .hint = kHint};
}

// One compile and who wants it. Whoever is second to `settle` knows how it went: the compiler found
// nobody waiting, or who waited found it done.
struct Job {
  std::shared_ptr<Compiler> compiler;
  std::shared_ptr<std::atomic<int>> given_up;
  std::string source, symbol;
  Target target;
  std::promise<void> started;
  std::promise<Result<CompiledKernel>> done;
  std::atomic<bool> settled{false};
};

void run(const std::shared_ptr<Job>& job, const std::function<std::shared_ptr<void>()>& on_thread) {
  // What it gave ends before anybody is told: the process may end then, and a driver with it.
  const auto compile = [&] {
    const std::shared_ptr<void> of_compile = on_thread();
    job->started.set_value();
    return job->compiler->compile(job->source, job->symbol, job->target);
  };
  try {
    job->done.set_value(compile());
  } catch (...) {
    job->done.set_exception(std::current_exception());
  }
  if (job->settled.exchange(true)) --*job->given_up;
}

class DeadlineCompiler final : public Compiler {
 public:
  DeadlineCompiler(std::unique_ptr<Compiler> compiler, double seconds,
                   std::function<std::shared_ptr<void>()> on_thread)
      : compiler_(std::move(compiler)), seconds_(seconds), on_thread_(std::move(on_thread)) {}

  std::string identity() const override { return compiler_->identity(); }
  bool supports(Target target) const override { return compiler_->supports(target); }

  Result<CompiledKernel> compile(const std::string& source, const std::string& symbol,
                                 Target target) override {
    if (source.size() > kMostSourceBytes) {
      return failed("source-too-large", fmt::format("{} has {} bytes of source, more than {}",
                                                    symbol, source.size(), kMostSourceBytes));
    }
    if (*given_up_ >= kMostGivenUp) {
      return failed(kCompileStuck,
                    fmt::format("{} is not compiled while {} compiles that were given up still run",
                                symbol, given_up_->load()));
    }
    const auto job = std::make_shared<Job>();
    job->compiler = compiler_;
    job->given_up = given_up_;
    job->source = source;
    job->symbol = symbol;
    job->target = target;
    auto started = job->started.get_future();
    auto done = job->done.get_future();
    try {
      std::thread(run, job, on_thread_).detach();
    } catch (const std::system_error&) {  // no thread to be had: better late than not at all
      return compiler_->compile(source, symbol, target);
    }
    started.wait();
    if (done.wait_for(std::chrono::duration<double>(seconds_)) != std::future_status::ready) {
      ++*given_up_;
      if (!job->settled.exchange(true)) {
        return failed(kCompileDeadline, fmt::format("{} was not done with {} after {} seconds",
                                                    identity(), symbol, seconds_));
      }
      --*given_up_;  // it was, at the last moment
    }
    return done.get();
  }

 private:
  const std::shared_ptr<Compiler> compiler_;
  const std::shared_ptr<std::atomic<int>> given_up_ = std::make_shared<std::atomic<int>>(0);
  const double seconds_;
  const std::function<std::shared_ptr<void>()> on_thread_;
};

}  // namespace

std::unique_ptr<Compiler> with_deadline(std::unique_ptr<Compiler> compiler, double seconds,
                                        std::function<std::shared_ptr<void>()> on_thread) {
  return std::make_unique<DeadlineCompiler>(std::move(compiler), seconds, std::move(on_thread));
}

}  // namespace attune
