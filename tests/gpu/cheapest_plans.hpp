// The cheapest plans of the kind that a test is about.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {

// By the cost model at `shape`, of each family one of those that `is_wanted`; of a family without
// any none.
template <typename Predicate>
std::vector<KernelPlan> cheapest_plans(const AttentionSpec& spec, Pass pass,
                                       const ProblemShape& shape, const Predicate& is_wanted) {
  const DeviceFacts& facts = KernelBank::instance().device().facts();
  const std::vector<Family> families = families_for(spec, facts.target, pass).value();
  std::vector<KernelPlan> plans;
  for (const Family family : families) {
    std::vector<KernelPlan> of_family = legal_plans(spec, family, facts, pass);
    std::erase_if(of_family, [&](const KernelPlan& plan) { return !is_wanted(plan); });
    const auto cost = [&](const KernelPlan& plan) { return cost_us(spec, plan, shape, facts); };
    if (!of_family.empty()) plans.push_back(*std::ranges::min_element(of_family, {}, cost));
  }
  return plans;
}

}  // namespace attune::gpu_test
