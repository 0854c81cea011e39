#include "tuner/isolation/worker.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/engine/engine.hpp"
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
  Result<WorkerReply> handle(const WorkerRequest& request) override {
    using Operation = WorkerRequest::Operation;
    WorkerReply reply;
    if (request.operation == Operation::kOpen) {
      ATT_CHECK(open(request.problem));
      return reply;
    }
    if (!store_) return Error{.id = "worker-protocol", .message = "no problem is open"};
    if (request.operation == Operation::kCompile) {
      ATT_TRY(const KernelPlan plan, parse_plan(request.plan));
      ATT_TRY(reply.facts, compile_candidate(spec_, plan, *compiler_, store_.get(), nullptr));
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
    ATT_TRY(const KernelPlan plan, parse_plan(request.plan));
    if (request.operation == Operation::kVerify) {
      ATT_CHECK(executor_->verify(plan));
    } else if (request.operation == Operation::kTime) {
      ATT_TRY(reply.time_us, executor_->time_us(plan));
    } else {
      executor_->release(plan);
    }
    return reply;
  }

 private:
  Status open(const WorkerProblem& problem) {
    executor_.reset();
    store_.reset();
    ATT_TRY(spec_, parse_spec(problem.spec_yaml, problem.spec_file));
    if (problem.compiler != compiler_name_) compiler_.reset();
    if (!compiler_) {
      ATT_TRY(compiler_, problem.compiler == "llvm" ? open_llvm_compiler() : open_nvrtc_compiler());
      compiler_name_ = problem.compiler;
    }
    if (!problem.device.empty() && problem.device != device_name_) {
      device_.reset();
      ATT_TRY(device_, open_device(problem.device));
      device_name_ = problem.device;
    }
    ATT_TRY(store_, open_store(problem.cache));
    if (!problem.device.empty()) {
      executor_ = std::make_unique<LocalExecutor>(spec_, problem.shape, *device_, *compiler_,
                                                  store_.get(), problem.seed);
    }
    return ok_status();
  }

  std::string device_name_, compiler_name_;
  AttentionSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<Store> store_;
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

std::unique_ptr<WorkerSession> make_local_session() { return std::make_unique<LocalSession>(); }

}  // namespace attune
