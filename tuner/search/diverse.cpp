#include "tuner/search/diverse.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace attune {
namespace {

constexpr std::size_t kMost = 16;
constexpr double kWithin = 1.1;  // times the fastest
// The first of its kind may be so far behind: on one mask two warpgroups are 10 % behind three on
// what is described and 7 % ahead on a launch's tensors.
constexpr double kFirstWithin = 1.25;

using Trait = std::tuple<Family, int, int>;  // which, and its value

std::vector<Trait> traits_of(const KernelPlan& plan) {
  const Family family = plan.family();
  std::vector<Trait> traits = {{family, 0, 0}};
  if (const auto* tile = std::get_if<Sm90aPlan>(&plan.tile)) {
    traits.emplace_back(family, 1, tile->warpgroups);
    traits.emplace_back(family, 2, static_cast<int>(tile->schedule));
    traits.emplace_back(family, 3, tile->heads > 1);
  } else if (const auto* tile = std::get_if<DecodePlan>(&plan.tile)) {
    traits.emplace_back(family, 1, tile->warps);
    traits.emplace_back(family, 2, tile->in_cluster ? tile->pieces : 0);
    traits.emplace_back(family, 3, tile->stretches);
  } else if (const auto* tile = std::get_if<Sm80Plan>(&plan.tile)) {
    traits.emplace_back(family, 1, tile->warps);
    traits.emplace_back(family, 2, tile->tile_q);
  }
  return traits;
}

}  // namespace

std::vector<KernelPlan> diverse_plans(std::span<const TimedPlan> by_time) {
  std::vector<KernelPlan> plans;
  if (by_time.empty()) return plans;
  const double best_us = by_time.front().us;
  const auto add = [&](const KernelPlan& plan) {
    if (plans.size() < kMost && std::ranges::find(plans, plan) == plans.end())
      plans.push_back(plan);
  };
  std::set<Trait> seen;
  for (const auto& [us, plan] : by_time) {
    if (us > kFirstWithin * best_us) break;
    bool is_first = false;
    for (const Trait& trait : traits_of(plan)) is_first = seen.insert(trait).second || is_first;
    if (is_first) add(plan);
  }
  for (const auto& [us, plan] : by_time) {
    if (us > kWithin * best_us) break;
    add(plan);
  }
  return plans;
}

}  // namespace attune
