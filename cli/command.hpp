// What every subcommand gives to main: a name, its options, and what runs when it was asked for.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace attune::cli {

// 0 done, 1 failed, 2 bad input, 3 nothing to run it on.
using ExitCode = int;

struct Command {
  CLI::App* app = nullptr;  // parsed: the user asked for this one
  std::function<ExitCode()> run;
};

// One file each, of the same name.
Command add_check(CLI::App& parent);
Command add_generate(CLI::App& parent);
Command add_compile(CLI::App& parent);
Command add_explain(CLI::App& parent);
Command add_run(CLI::App& parent);
Command add_bench(CLI::App& parent);
Command add_tune(CLI::App& parent);
Command add_sweep(CLI::App& parent);
Command add_cache(CLI::App& parent);
Command add_report(CLI::App& parent);
Command add_devices(CLI::App& parent);
Command add_status(CLI::App& parent);
Command add_worker(CLI::App& parent);

}  // namespace attune::cli
