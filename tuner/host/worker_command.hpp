// Where a host's library finds the `attune` command.
#pragma once

#include <string>
#include <vector>

#include "generator/support/result.hpp"

namespace attune {

// The command whose workers compile and measure: `given`; if empty $ATTUNE_COMMAND; else `attune`
// beside this library or the program, in a bin directory beside theirs, or in $PATH. kUnavailable,
// "worker-missing", naming what was tried.
Result<std::vector<std::string>> worker_command(const std::string& given);

}  // namespace attune
