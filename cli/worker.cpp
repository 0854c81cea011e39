// attune worker: what `tune` and `sweep` start to compile and measure in. Not for people.
#include "tuner/isolation/worker.hpp"

#include <unistd.h>

#include "cli/command.hpp"

namespace attune::cli {

Command add_worker(CommandLine& parent) {
  CommandLine line = parent.command("worker", "Answer a tuner's requests on standard input");
  line.hide();
  return {line, []() -> ExitCode {
            run_worker(STDIN_FILENO, STDOUT_FILENO, [] { return make_local_session(); });
          }};
}

}  // namespace attune::cli
