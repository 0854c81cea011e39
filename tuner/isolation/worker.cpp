#include "tuner/isolation/worker.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/specs/tensor_file.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune {
namespace {

void write_line(int out, const std::string& text) {
  const std::string line = text + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t wrote = write(out, line.data() + sent, line.size() - sent);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) _exit(1);  // nobody listens any more
    sent += static_cast<std::size_t>(wrote);
  }
}

class LocalSession final : public WorkerSession {
 public:
  explicit LocalSession(NamedCompilerOpener opener) : opener_(std::move(opener)) {}

  Result<WorkerReply> handle(const WorkerRequest& request) override {
    using Operation = WorkerRequest::Operation;
    WorkerReply reply;
    if (request.operation == Operation::kOpen) {
      ATT_CHECK(open(request.problem));
      return reply;
    }
    if (!store_) return Error{.id = "worker-protocol", .message = "no problem is open"};
    if (request.operation == Operation::kCompile) {
      ATT_TRY(const Candidate candidate, candidate_of(request));
      ATT_TRY(Compiler * compiler, compiler(candidate.compiler));
      ATT_TRY(reply.facts,
              compile_candidate(spec_, candidate.plan, *compiler, store_.get(), nullptr));
      return reply;
    }
    if (!executor_) return Error{.id = "worker-protocol", .message = "this worker has no device"};
    if (request.operation == Operation::kConditions) {
      reply.conditions = executor_->conditions();
      return reply;
    }
    if (request.operation == Operation::kPrepare) {
      ATT_CHECK(executor_->prepare());
      return reply;
    }
    ATT_TRY(const Candidate candidate, candidate_of(request));
    if (request.operation == Operation::kVerify) {
      ATT_CHECK(executor_->verify(candidate));
    } else if (request.operation == Operation::kTime) {
      ATT_TRY(reply.time_us, executor_->time_us(candidate));
    } else {
      executor_->release(candidate);
    }
    return reply;
  }

 private:
  Status open(const WorkerProblem& problem) {
    executor_.reset();
    store_.reset();
    launch_.reset();
    ATT_TRY(spec_, parse_spec(problem.spec_yaml, problem.spec_file));
    ATT_CHECK(describe(problem.samples, spec_));
    ATT_CHECK(give_tensors(problem.tensors, spec_));
    ATT_CHECK(take_words(problem.sequences, spec_));
    if (!problem.launch.empty() && !problem.device.empty()) {
      ATT_TRY(launch_, GivenLaunch::open(spec_, problem.launch));
      give_tensors(*launch_, spec_);
    }
    compiler_names_ = problem.compilers;
    if (!problem.device.empty() && problem.device != device_name_) {
      device_.reset();
      ATT_TRY(device_, open_device(problem.device));
      device_name_ = problem.device;
    }
    ATT_TRY(store_, open_store(problem.cache));
    if (!problem.device.empty()) {
      std::vector<Compiler*> compilers;
      for (int i = 0; i < static_cast<int>(compiler_names_.size()); ++i) {
        ATT_TRY(Compiler * compiler, this->compiler(i));
        compilers.push_back(compiler);
      }
      executor_ =
          std::make_unique<LocalExecutor>(spec_, problem.shape, *device_, compilers, store_.get(),
                                          problem.seed, problem.pass, launch_.get());
    }
    return ok_status();
  }

  Result<Candidate> candidate_of(const WorkerRequest& request) const {
    ATT_TRY(const KernelPlan plan, parse_plan(request.plan));
    if (request.compiler < 0 || request.compiler >= static_cast<int>(compiler_names_.size())) {
      return Error{.id = "worker-protocol", .message = "the problem has no such compiler"};
    }
    return Candidate(plan, request.compiler);
  }

  // Opened when first needed and kept over many problems.
  Result<Compiler*> compiler(int index) {
    const std::string& name = compiler_names_[static_cast<std::size_t>(index)];
    auto& compiler = compilers_[name];
    if (!compiler) {
      ATT_TRY(compiler, opener_(name));
    }
    return compiler.get();
  }

  const NamedCompilerOpener opener_;
  std::string device_name_;
  std::vector<std::string> compiler_names_;  // of the problem that is open
  AttentionSpec spec_;
  std::unique_ptr<Device> device_;
  std::map<std::string, std::unique_ptr<Compiler>> compilers_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<GivenLaunch> launch_;
  std::unique_ptr<LocalExecutor> executor_;
};

}  // namespace

void run_worker(int in, int out,
                const std::function<std::unique_ptr<WorkerSession>()>& make_session) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::string> lines;
  std::thread([&] {
    const auto session = make_session();
    while (true) {
      std::unique_lock lock(mutex);
      arrived.wait(lock, [&] { return !lines.empty(); });
      const std::string line = lines.front();
      lines.pop_front();
      lock.unlock();
      const Result<WorkerRequest> request = decode_request(line);
      write_line(out, encode(request.ok() ? session->handle(*request)
                                          : Result<WorkerReply>(request.error())));
    }
  }).detach();

  std::string received;
  std::array<char, 4096> bytes;
  while (true) {
    const ssize_t got = read(in, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(0);
    received.append(bytes.data(), static_cast<std::size_t>(got));
    for (auto end = received.find('\n'); end != std::string::npos; end = received.find('\n')) {
      const std::lock_guard lock(mutex);
      lines.push_back(received.substr(0, end));
      received.erase(0, end + 1);
      arrived.notify_one();
    }
  }
}

std::unique_ptr<WorkerSession> make_local_session(NamedCompilerOpener opener) {
  return std::make_unique<LocalSession>(std::move(opener));
}

}  // namespace attune
