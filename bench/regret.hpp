// What the modes of bench/regret share.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generator/plan/plan.hpp"
#include "generator/spec/library.hpp"

namespace attune::regret {

using Json = nlohmann::ordered_json;

inline Result<AttentionSpec> library_spec(const std::string& name, std::string* text = nullptr) {
  ATT_TRY(const LibrarySpec entry, find_library_spec(name));
  if (text != nullptr) *text = entry.text;
  return parse_spec(entry.text, entry.path);
}

// How many plans the model puts before the first one that needs at most `factor` times the best's
// time, and that one itself. `plans` in the model's order; those without a time were rejected.
template <typename TimeOf>
std::size_t rank_within(double factor, const std::vector<KernelPlan>& plans,
                        const TimeOf& time_of) {
  double best_us = INFINITY;
  for (const KernelPlan& plan : plans) best_us = std::min(best_us, time_of(plan));
  const auto good = [&](const KernelPlan& plan) { return time_of(plan) <= best_us * factor; };
  return static_cast<std::size_t>(std::ranges::find_if(plans, good) - plans.begin()) + 1;
}

// Prints what today's model and search make of each shape recorded in that file.
Status replay_all(const std::string& path);

}  // namespace attune::regret
