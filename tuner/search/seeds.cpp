#include "tuner/search/seeds.hpp"

#include <algorithm>
#include <map>

#include "generator/plan/distance.hpp"

namespace attune {
namespace {

// At least so many of every family: a model is most often wrong between families. They differ in so
// many parts: plans that resemble each other are as good or bad as each other, and the neighbours
// of the best are asked for anyway.
constexpr std::size_t kSeedsPerFamily = 2;
constexpr int kSeedDistance = 3;

}  // namespace

std::vector<KernelPlan> search_seeds(std::span<const KernelPlan> plans, std::size_t most) {
  std::vector<KernelPlan> seeds;
  std::map<Family, std::size_t> of_family;
  // Small spaces do not have so many that differ so much.
  for (int distance = kSeedDistance; distance > 0; --distance) {
    for (const KernelPlan& plan : plans) {
      const bool wanted = seeds.size() < most || of_family[plan.family()] < kSeedsPerFamily;
      const auto resembles = [&](const KernelPlan& seed) {
        return plan_distance(plan, seed) < distance;
      };
      if (!wanted || std::ranges::any_of(seeds, resembles)) continue;
      seeds.push_back(plan);
      ++of_family[plan.family()];
    }
  }
  return seeds;
}

}  // namespace attune
