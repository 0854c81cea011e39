// The subcommands of `attune cache`, spread over two files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/options.hpp"

namespace attune::cli {

struct CacheOptions : Options {
  std::vector<std::string> files;
  bool without_code = false;
  bool rebuild = false;
  bool unpin = false;
  std::int64_t limit_mb = 0;
};

class CacheCommands {
 public:
  explicit CacheCommands(CommandLine& line) : line_(line) {}
  // A subcommand that knows --cache and --json; the caller adds what else it takes.
  std::pair<CommandLine, std::shared_ptr<CacheOptions>> add(
      const char* name, const char* description,
      std::function<Result<ExitCode>(const CacheOptions&)> action, const std::string& example);
  // Runs the one that the user asked for.
  std::function<ExitCode()> runner() const;

 private:
  CommandLine& line_;
  std::shared_ptr<std::function<ExitCode()>> chosen_ =
      std::make_shared<std::function<ExitCode()>>();
};

// The file that --cache names, or the user's; kBadInput for none.
Result<std::string> cache_file(const Options& options);

void add_cache_upkeep(CacheCommands& commands);

}  // namespace attune::cli
