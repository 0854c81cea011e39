// The plan a command works with: the one --plan names, the tuned one, or the cost model's.
#pragma once

#include <string>

#include "cli/workbench.hpp"

namespace attune::cli {

struct ChosenPlan {
  KernelPlan plan;
  std::string origin;                // "--plan", "measured", "nearest measured shape", "cost model"
  std::string compiler_family = {};  // of the one that was fastest; empty: not measured
};

// `target`: what to build for; the cache is asked only when it is the open device's.
Result<ChosenPlan> plan_for(const AttentionSpec& spec, const ProblemShape& shape, Target target,
                            Pass pass, const Options& options, Workbench& bench);

}  // namespace attune::cli
