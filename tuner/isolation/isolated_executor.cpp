#include "tuner/isolation/isolated_executor.hpp"

#include <optional>
#include <utility>

namespace attune {
namespace {

using Operation = WorkerRequest::Operation;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Of verify() at most: two problems, each once more on other numbers.
constexpr int kVerifyLaunches = 4;

std::vector<std::string> this_program() { return {"/proc/self/exe", "worker"}; }

bool is_workers_end(const Error& error) {
  return error.id == "worker-died" || error.id == "worker-hung";
}

WorkerRequest request_for(Operation operation, const Candidate& candidate) {
  return {
      .operation = operation, .plan = to_string(candidate.plan), .compiler = candidate.compiler};
}

Result<WorkerReply> exchange(ChildProcess& process, const WorkerRequest& message,
                             milliseconds within) {
  ATT_TRY(const std::string reply, process.ask(encode(message), within));
  return decode_reply(reply);
}

}  // namespace

struct IsolatedExecutor::Worker {
  std::optional<ChildProcess> process;
  int generation = -1;  // of the problem it has open
};

IsolatedExecutor::IsolatedExecutor(IsolationOptions options)
    : options_([&] {
        if (options.worker_command.empty()) options.worker_command = this_program();
        return std::move(options);
      }()),
      deadline_(options_.run_deadline) {}

IsolatedExecutor::~IsolatedExecutor() = default;

void IsolatedExecutor::open(const WorkerProblem& problem, Digest digest, ExpectedTime expected) {
  problem_ = problem;
  digest_ = std::move(digest);
  expected_ = std::move(expected);
  deadline_ = LaunchDeadline(options_.run_deadline);
  ++generation_;
}

// Starts the worker and opens the problem as far as needed. No candidate runs yet: whatever fails
// here is the machine's failure.
Status IsolatedExecutor::make_open(Worker& worker, bool with_device) {
  if (!worker.process || !worker.process->running()) {
    ATT_TRY(worker.process, ChildProcess::start(options_.worker_command));
    worker.generation = -1;
  }
  if (worker.generation == generation_) return ok_status();
  WorkerRequest opening{.operation = Operation::kOpen, .problem = problem_};
  if (!with_device) opening.problem.device.clear();
  ATT_TRY(const WorkerReply opened, exchange(*worker.process, opening, options_.prepare_deadline));
  if (with_device) {
    const auto began = steady_clock::now();
    ATT_TRY(
        const WorkerReply prepared,
        exchange(*worker.process, {.operation = Operation::kPrepare}, options_.prepare_deadline));
    prepare_took_ = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began);
  }
  worker.generation = generation_;
  return ok_status();
}

Result<WorkerReply> IsolatedExecutor::ask(Worker& worker, const WorkerRequest& request,
                                          milliseconds deadline, bool with_device) {
  ATT_CHECK(make_open(worker, with_device));
  Result<WorkerReply> reply = exchange(*worker.process, request, deadline);
  if (!reply.ok() && is_workers_end(reply.error())) {
    const bool hung = reply.error().id == "worker-hung";
    return candidate_error(request.operation == Operation::kCompile ? "compile"
                           : hung                                   ? "hang"
                                                                    : "fault",
                           reply.error().message, reply.error().detail);
  }
  return reply;
}

Result<CompiledFacts> IsolatedExecutor::compile(const Candidate& candidate) {
  std::unique_ptr<Worker> worker;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      worker = std::make_unique<Worker>();
    } else {
      worker = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  auto reply =
      ask(*worker, request_for(Operation::kCompile, candidate), options_.compile_deadline, false);
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(worker));
  }
  if (!reply.ok()) return reply.error();
  return reply->facts;
}

Status IsolatedExecutor::prepare() {
  if (!measuring_) measuring_ = std::make_unique<Worker>();
  return make_open(*measuring_, true);
}

Result<WorkerReply> IsolatedExecutor::measure(Operation operation, const Candidate& candidate,
                                              int launches) {
  ATT_CHECK(prepare());
  milliseconds deadline = deadline_.of(expected_us(candidate), launches);
  if (operation == Operation::kVerify) deadline += prepare_took_;
  auto reply = ask(*measuring_, request_for(operation, candidate), deadline, true);
  if (!reply.ok() &&
      (rejection_reason(reply.error()) == "fault" || rejection_reason(reply.error()) == "hang")) {
    // A context that a kernel broke serves nobody; the next request starts a fresh one.
    measuring_.reset();
    ++restarts_;
  }
  return reply;
}

Status IsolatedExecutor::verify(const Candidate& candidate) {
  ATT_TRY(const WorkerReply reply, measure(Operation::kVerify, candidate, kVerifyLaunches));
  return ok_status();
}

Result<double> IsolatedExecutor::time_us(const Candidate& candidate) {
  ATT_TRY(const WorkerReply reply, measure(Operation::kTime, candidate, 1));
  deadline_.note(reply.time_us);
  return reply.time_us;
}

void IsolatedExecutor::release(const Candidate& candidate) {
  if (measuring_ && measuring_->generation == generation_)
    (void)measure(Operation::kRelease, candidate, 0);
}

std::string IsolatedExecutor::conditions() {
  if (!measuring_ || measuring_->generation != generation_) return "{}";
  const auto reply =
      ask(*measuring_, {.operation = Operation::kConditions}, options_.run_deadline, true);
  return reply.ok() ? reply->conditions : "{}";
}

}  // namespace attune
