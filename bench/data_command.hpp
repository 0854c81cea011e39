// The command line of the programs that measure masks of files that bench/data_regret.py makes.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace attune {

struct DataCommand {
  bool without_device = false;
  double budget_s = INFINITY;
  std::size_t plans = SIZE_MAX;
  int rounds = 60;
  std::string device = "cuda:0", directory;
  std::vector<std::string> masks;
};

// Of `directory`, by name.
inline std::vector<std::string> masks_in(const std::string& directory) {
  std::vector<std::string> masks;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".yaml") masks.push_back(entry.path().stem().string());
  }
  std::ranges::sort(masks);
  return masks;
}

// The exit status where the program is to end here: after --help, or on a wrong command line.
// `flag` says without a device what `flag_help` tells.
inline std::optional<int> parse_data_command(int argc, char** argv, CLI::App& app, const char* flag,
                                             const char* flag_help, DataCommand& command) {
  app.add_flag(flag, command.without_device, flag_help);
  app.add_option("--device", command.device, "cuda:N or cpu")->capture_default_str();
  app.add_option("--budget", command.budget_s, "seconds for all masks together; default: no end")
      ->check(CLI::PositiveNumber);
  app.add_option("--plans", command.plans, "measure at most so many of a mask")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", command.rounds, "of the plans against each other")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("DIRECTORY", command.directory, "what `bench/data_regret.py --make` wrote")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("MASK", command.masks, "default: all of the directory");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& end) {
    return app.exit(end) == 0 ? 0 : 2;
  }
  const std::vector<std::string> there = masks_in(command.directory);
  if (command.masks.empty()) command.masks = there;
  for (const std::string& mask : command.masks) {
    if (std::ranges::find(there, mask) != there.end()) continue;
    return app.exit(CLI::ValidationError("MASK", command.directory + " has no " + mask)) == 0 ? 0
                                                                                              : 2;
  }
  return std::nullopt;
}

}  // namespace attune
