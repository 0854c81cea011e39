// What to say to a command line that is not understood.
#pragma once

#include <optional>
#include <span>

#include "cli/command_line.hpp"
#include "generator/support/error.hpp"

namespace attune::cli {

// "usage", after `program` did not understand its words: names the first one that is neither
// command nor option and what was probably meant; else what the reading says.
Error describe_misuse(const CommandLine& program, const Reading& reading);

// The first word of `words` that is no command where it stands, as such an error: what `help` was
// asked of. What follows a command that has none of its own is not looked at. Options are passed
// over.
std::optional<Error> unknown_word(const CommandLine& program, std::span<char* const> words);

}  // namespace attune::cli
