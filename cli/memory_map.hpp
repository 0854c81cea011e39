// What lies in a kernel's shared memory.
#pragma once

#include <string>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune::cli {

struct MemoryRegion {
  std::string name;     // "K"
  std::string content;  // "2 stages of 64 x 128"
  int bytes = 0;
};

// Largest first; together the recipe's bytes, with what no tensor occupies last. Empty for kernels
// without shared memory.
std::vector<MemoryRegion> shared_memory_map(const AttentionSpec& spec, const KernelPlan& plan);

}  // namespace attune::cli
