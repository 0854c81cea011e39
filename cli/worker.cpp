// attune worker: what `tune` and `sweep` start to compile and measure in. Not for people.
#include "tuner/isolation/worker.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cli/command.hpp"

namespace attune::cli {

Command add_worker(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand("worker", "Answer a tuner's requests on standard input");
  app->group("");  // hidden
  return {app, []() -> ExitCode {
            run_worker(STDIN_FILENO, STDOUT_FILENO, [] { return make_local_session(); });
          }};
}

}  // namespace attune::cli
