// What sequences are like in problems that a command makes up: --lengths, --page-size,
// --shared-prefix.
#pragma once

#include <span>
#include <string>

#include "cli/options.hpp"

namespace attune::cli {

void add_sequences(CommandLine& line, Options& options);
// Whether one of them is given.
bool names_sequences(const Options& options);
// Gives the spec what these options say. kBadInput where its layout, or one of `shapes`, has no
// such sequences.
Status give_sequences(const Options& options, std::span<const ProblemShape> shapes,
                      AttentionSpec& spec);
// The shape, and what is said of its sequences; for tables.
std::string problem_text(const AttentionSpec& spec, const ProblemShape& shape);

}  // namespace attune::cli
