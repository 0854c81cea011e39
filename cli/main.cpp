// The command: finds the subcommand, runs it, and turns its outcome into an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/command.hpp"
#include "cli/misuse.hpp"
#include "cli/output.hpp"

namespace attune::cli {
namespace {

// `help run` and `version` as options, which others' commands have as commands.
std::vector<char*> words_of(int argc, char** argv) {
  static char help[] = "--help", version[] = "--version";
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words.erase(words.begin() + 1);
    words.push_back(help);
  } else if (argc == 2 && std::string_view(argv[1]) == "version") {
    words[1] = version;
  }
  return words;
}

// A descriptor that the caller left closed would be that of the next file which is opened, and what
// is said would be written into that file. Reading and writing fail as they would have.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number is free: this one. It serves the way that the stream is not used.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) return;
  }
}

ExitCode main(int argc, char** argv) {
  CommandLine program("attune",
                      "Turns a description of attention into the fastest kernel for the GPU at "
                      "hand.");
  program.version("attune " ATTUNE_VERSION);
  bool quiet = false;
  program.flag("-q,--quiet", quiet, "no notes and warnings on stderr");
  bool verbose = false;
  program.flag("-v,--verbose", verbose, "errors with all of their detail");
  program.exclude("--verbose", "--quiet");
  program.require_command();
  program.options_may_follow_commands();
  program.footer(
      "Exit codes: 0 done, 1 failed, 2 bad input, 3 nothing to run it on.\n"
      "`attune SUBCOMMAND --help` shows its options and an example.");

  const std::vector<Command> commands = {
      add_check(program),  add_generate(program), add_compile(program), add_explain(program),
      add_run(program),    add_bench(program),    add_tune(program),    add_sweep(program),
      add_cache(program),  add_report(program),   add_devices(program), add_status(program),
      add_worker(program),
  };
  std::vector<char*> words = words_of(argc, argv);
  if (argc > 2 && std::string_view(argv[1]) == "help") {
    const auto unknown = unknown_word(program, std::span(argv + 2, argv + argc));
    if (unknown) return fail(*unknown);
  }
  const Reading reading = program.read(static_cast<int>(words.size()), words.data());
  switch (reading.outcome) {
    case Reading::Outcome::kCommand:
      break;
    case Reading::Outcome::kAnswer:
      print(reading.text);
      return finish_output(0);
    case Reading::Outcome::kBadValue:
    case Reading::Outcome::kMisuse:
      return fail(describe_misuse(program, reading));
  }
  start_output(quiet ? Talk::kErrors : verbose ? Talk::kAll : Talk::kNormal);
  for (const Command& command : commands) {
    if (command.line.chosen()) return finish_output(command.run());
  }
  return finish_output(2);
}

}  // namespace
}  // namespace attune::cli

int main(int argc, char** argv) {
  attune::cli::occupy_standard_streams();
  try {
    return attune::cli::main(argc, argv);
  } catch (const std::bad_alloc&) {
    return attune::cli::fail({.id = "exhausted", .message = "there is no memory left"});
  } catch (const std::system_error& problem) {
    return attune::cli::fail({.id = "exhausted",
                              .message = std::string("cannot go on: ") + problem.what(),
                              .hint = "memory or threads may be short"});
  }
}
