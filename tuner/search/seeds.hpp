// The plans that a search begins with.
#pragma once

#include <span>
#include <vector>

#include "generator/plan/plan.hpp"

namespace attune {

// What a search asks for first of `plans`, which are in the cost model's order; more than `most`
// only so that every family is there.
inline constexpr std::size_t kSearchSeeds = 12;
std::vector<KernelPlan> search_seeds(std::span<const KernelPlan> plans,
                                     std::size_t most = kSearchSeeds);

}  // namespace attune
