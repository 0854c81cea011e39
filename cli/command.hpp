// What every subcommand gives to main: a name, its options, and what runs when it was asked for.
#pragma once

#include <functional>

#include "cli/command_line.hpp"

namespace attune::cli {

// 0 done, 1 failed, 2 bad input, 3 nothing to run it on.
using ExitCode = int;

struct Command {
  CommandLine line;
  std::function<ExitCode()> run;
};

// One file each, of the same name.
Command add_check(CommandLine& parent);
Command add_generate(CommandLine& parent);
Command add_compile(CommandLine& parent);
Command add_explain(CommandLine& parent);
Command add_run(CommandLine& parent);
Command add_bench(CommandLine& parent);
Command add_tune(CommandLine& parent);
Command add_sweep(CommandLine& parent);
Command add_cache(CommandLine& parent);
Command add_report(CommandLine& parent);
Command add_devices(CommandLine& parent);
Command add_status(CommandLine& parent);
Command add_worker(CommandLine& parent);

}  // namespace attune::cli
