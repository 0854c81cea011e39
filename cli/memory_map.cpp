#include "cli/memory_map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::cli {

std::vector<MemoryRegion> shared_memory_map(const AttentionSpec& spec, const KernelPlan& plan) {
  std::vector<MemoryRegion> regions;
  int rest = resources(spec, plan).shared_memory_bytes;
  for (const SharedMatrix& m : shared_matrices(spec, plan)) {
    const std::string stages = m.stages > 1 ? fmt::format("{} stages of ", m.stages) : "";
    const DType dtype = m.name == "Q" ? spec.dtype : kv_dtype(spec);
    const int bytes = m.stages * m.rows * m.columns * element_bytes(dtype);
    regions.push_back(
        {std::string(m.name), fmt::format("{}{} x {}", stages, m.rows, m.columns), bytes});
    rest -= bytes;
  }
  std::ranges::stable_sort(regions, std::greater<>(), &MemoryRegion::bytes);
  if (rest > 0) regions.push_back({"rest", "barriers, schedule, padding", rest});
  return regions;
}

}  // namespace attune::cli
