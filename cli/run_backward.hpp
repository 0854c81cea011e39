// attune run --pass backward.
#pragma once

#include <cstdint>

#include "cli/command.hpp"
#include "cli/spec_source.hpp"
#include "cli/workbench.hpp"

namespace attune::cli {

// Runs the forward kernel and then the backward one on fresh random input, and compares every
// gradient with the fp64 oracle's.
Result<ExitCode> run_backward(const Options& options, const LoadedSpec& loaded,
                              const ProblemShape& shape, std::uint64_t seed, Workbench& bench);

}  // namespace attune::cli
