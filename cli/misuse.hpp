// What to say to a command line that is not understood.
#pragma once

#include "cli/command_line.hpp"
#include "generator/support/error.hpp"

namespace attune::cli {

// "usage", after `program` did not understand its words: names the first one that is neither
// command nor option and what was probably meant; else what the reading says.
Error describe_misuse(const CommandLine& program, const Reading& reading);

}  // namespace attune::cli
