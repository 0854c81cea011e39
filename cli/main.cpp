// The command: finds the subcommand, runs it, and turns its outcome into an exit code.
#include <CLI/CLI.hpp>

#include "cli/command.hpp"
#include "cli/misuse.hpp"
#include "cli/output.hpp"

namespace attune::cli {
namespace {

ExitCode main(int argc, char** argv) {
  CLI::App app("Turns a description of attention into the fastest kernel for the GPU at hand.",
               "attune");
  app.set_version_flag("--version", "attune " ATTUNE_VERSION);
  bool quiet = false;
  app.add_flag("-q,--quiet", quiet, "no notes and warnings on stderr");
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "errors with all of their detail")->excludes("--quiet");
  app.require_subcommand(1);
  app.fallthrough();  // -q and -v may follow the subcommand
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad input, 3 nothing to run it on.\n"
      "`attune SUBCOMMAND --help` shows its options and an example.");

  const std::vector<Command> commands = {
      add_check(app),   add_generate(app), add_compile(app), add_explain(app), add_run(app),
      add_bench(app),   add_tune(app),     add_sweep(app),   add_cache(app),   add_report(app),
      add_devices(app), add_status(app),   add_worker(app),
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return finish_output(app.exit(error));
    return fail(describe_misuse(app, error));
  }
  start_output(quiet ? Talk::kErrors : verbose ? Talk::kAll : Talk::kNormal);
  for (const Command& command : commands) {
    if (command.app->parsed()) return finish_output(command.run());
  }
  return finish_output(2);
}

}  // namespace
}  // namespace attune::cli

int main(int argc, char** argv) { return attune::cli::main(argc, argv); }
