// The worker's side: answers requests until its input ends.
#pragma once

#include <functional>
#include <memory>

#include "runtime/jit/compiler.hpp"
#include "tuner/isolation/protocol.hpp"

namespace attune {

// Does what requests ask; one problem at a time, another kOpen replaces it.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  virtual Result<WorkerReply> handle(const WorkerRequest& request) = 0;
};

// Reads requests from `in` and writes replies to `out` until `in` ends; then ends the process even
// when a request hangs, so that no worker outlives its tuner. Requests are handled on one thread.
[[noreturn]] void run_worker(int in, int out,
                             const std::function<std::unique_ptr<WorkerSession>()>& make_session);

using NamedCompilerOpener =
    std::function<Result<std::unique_ptr<Compiler>>(const std::string& name)>;

// The session of `attune worker`: devices, compilers and the cache of this machine.
std::unique_ptr<WorkerSession> make_local_session(NamedCompilerOpener opener = open_named_compiler);

}  // namespace attune
