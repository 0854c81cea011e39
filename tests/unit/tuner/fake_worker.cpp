// A worker whose candidates behave as planted: the real loop and protocol, no device.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "generator/support/hash.hpp"
#include "tests/unit/tuner/planted.hpp"
#include "tuner/isolation/worker.hpp"

namespace attune {
namespace {

class FakeSession final : public WorkerSession {
 public:
  Result<WorkerReply> handle(const WorkerRequest& request) override {
    using Operation = WorkerRequest::Operation;
    WorkerReply reply;
    if (request.operation == Operation::kOpen && request.problem.device == "cuda:none") {
      return Error{.kind = ErrorKind::kUnavailable, .id = "gpu-missing", .message = "planted"};
    }
    if (request.operation == Operation::kOpen || request.operation == Operation::kPrepare)
      return reply;
    if (request.operation == Operation::kConditions)
      return WorkerReply{.conditions = R"({"sm_mhz": 1980})"};
    ATT_TRY(const KernelPlan plan, parse_plan(request.plan));
    const std::string behaviour = tuner_testing::planted(plan);
    if (request.operation == Operation::kCompile) {
      if (behaviour == "compile-hang") pause();
      if (behaviour == "compile-error") return candidate_error("compile", "planted");
      if (behaviour == "compile-crash") {
        std::fputs("assertion failed: planted\n", stderr);
        std::abort();
      }
      reply.facts = {.build_digest = hash128_hex(request.plan), .threads = 128, .registers = 64};
    } else if (request.operation == Operation::kVerify) {
      if (behaviour == "hang") pause();
      if (behaviour == "crash") crash();
      if (behaviour == "fault") return candidate_error("fault", "illegal address");
      if (behaviour == "miscompute") return candidate_error("miscompute", "planted");
    } else if (request.operation == Operation::kTime) {
      if (behaviour == "late-crash") crash();
      reply.time_us = tuner_testing::planted_time_us(plan);
    }
    return reply;
  }

 private:
  static void crash() {
    std::signal(SIGSEGV, SIG_DFL);  // not a sanitizer's: a crash is a death by signal
    std::raise(SIGSEGV);
  }
};

}  // namespace
}  // namespace attune

int main() {
  attune::run_worker(STDIN_FILENO, STDOUT_FILENO,
                     [] { return std::make_unique<attune::FakeSession>(); });
}
