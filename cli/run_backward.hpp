// attune run --pass backward.
#pragma once

#include <cstdint>
#include <string>

#include "cli/spec_source.hpp"
#include "cli/workbench.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {

// What `attune run` says of one pass.
struct RunOutcome {
  Json json;
  std::string text;
  std::string wrong;  // empty: every result that was compared is right
};

// Runs the forward kernel and then the backward one on fresh random input, and compares every
// gradient with the fp64 oracle's.
Result<RunOutcome> run_backward(const Options& options, const LoadedSpec& loaded,
                                const ProblemShape& shape, std::uint64_t seed, Workbench& bench);

}  // namespace attune::cli
