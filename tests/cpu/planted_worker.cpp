// `attune worker` on this machine, with a candidate or a clock that the environment plants:
//   ATTUNE_TEST_CRASHES   a plan that dies of SIGSEGV when it is verified
//   ATTUNE_TEST_FASTEST   the plan that takes a microsecond; all others take 100
//   ATTUNE_TEST_BUILD     "other": what is compiled is of another source
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "tuner/isolation/worker.hpp"

namespace attune {
namespace {

std::string planted(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class PlantedSession final : public WorkerSession {
 public:
  Result<WorkerReply> handle(const WorkerRequest& request) override {
    using Operation = WorkerRequest::Operation;
    if (request.operation == Operation::kVerify && request.plan == planted("ATTUNE_TEST_CRASHES")) {
      std::signal(SIGSEGV, SIG_DFL);  // not a sanitizer's: a crash is a death by signal
      std::raise(SIGSEGV);
    }
    auto reply = inner_->handle(request);
    if (!reply.ok()) return reply;
    const std::string fastest = planted("ATTUNE_TEST_FASTEST");
    if (request.operation == Operation::kTime && !fastest.empty())
      reply->time_us = request.plan == fastest ? 1 : 100;
    if (request.operation == Operation::kCompile && planted("ATTUNE_TEST_BUILD") == "other")
      reply->facts.build_digest = "another";
    return reply;
  }

 private:
  const std::unique_ptr<WorkerSession> inner_ = make_local_session();
};

}  // namespace
}  // namespace attune

int main() {
  attune::run_worker(STDIN_FILENO, STDOUT_FILENO,
                     [] { return std::make_unique<attune::PlantedSession>(); });
}
