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

// Median microseconds of each by its name, of so many interleaved rounds: the least of a hundred
// medians taken one after the other is a lucky one. Compiles and verifies first.
inline Result<nlohmann::ordered_json> duel(
    LocalExecutor& executor, const std::vector<std::pair<std::string, KernelPlan>>& named,
    int rounds) {
  std::map<KernelPlan, std::vector<double>> samples;
  for (const auto& [name, plan] : named) {
    if (!samples.try_emplace(plan).second) continue;
    ATT_TRY(const CompiledFacts facts, executor.compile(plan));
    ATT_CHECK(executor.verify(plan));
  }
  for (int round = 0; round < rounds; ++round) {
    for (auto& [plan, times] : samples) {
      ATT_TRY(const double us, executor.time_us(plan));
      times.push_back(us);
    }
  }
  nlohmann::ordered_json medians;
  for (const auto& [name, plan] : named) medians[name] = spread_of(samples.at(plan)).median;
  return medians;
}

}  // namespace attune
