// Plans against each other on one problem.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tuner/measure/local_executor.hpp"
#include "tuner/statistics.hpp"

namespace attune {

using NamedPlans = std::vector<std::pair<std::string, KernelPlan>>;

// Microseconds of every plan, one of each of so many interleaved rounds: the least of a hundred
// medians taken one after the other is a lucky one. Each round starts with another plan, so that
// none always follows the same one. Compiles and verifies first.
inline Result<std::map<KernelPlan, std::vector<double>>> interleaved(LocalExecutor& executor,
                                                                     const NamedPlans& named,
                                                                     int rounds) {
  std::map<KernelPlan, std::vector<double>> samples;
  std::vector<KernelPlan> plans;
  for (const auto& [name, plan] : named) {
    if (!samples.try_emplace(plan).second) continue;
    plans.push_back(plan);
    ATT_TRY(const CompiledFacts facts, executor.compile(plan));
    ATT_CHECK(executor.verify(plan));
  }
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const KernelPlan& plan = plans[(round + i) % plans.size()];
      ATT_TRY(const double us, executor.time_us(plan));
      samples.at(plan).push_back(us);
    }
  }
  return samples;
}

// The medians by the plans' names.
inline nlohmann::ordered_json medians_of(const std::map<KernelPlan, std::vector<double>>& samples,
                                         const NamedPlans& named) {
  nlohmann::ordered_json medians;
  for (const auto& [name, plan] : named) medians[name] = spread_of(samples.at(plan)).median;
  return medians;
}

inline Result<nlohmann::ordered_json> duel(LocalExecutor& executor, const NamedPlans& named,
                                           int rounds) {
  ATT_TRY(const auto samples, interleaved(executor, named, rounds));
  return medians_of(samples, named);
}

}  // namespace attune
