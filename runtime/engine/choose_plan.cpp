#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/engine.hpp"

namespace attune {

Result<KernelPlan> usable_plan(const AttentionSpec& spec, const std::string& text,
                               const DeviceFacts& facts) {
  ATT_TRY(const KernelPlan plan, parse_plan(text));
  ATT_CHECK(check_plan(spec, plan, facts));
  return plan;
}

FailedPlan failed_plan(std::string plan, const Error& error) {
  return {.plan = std::move(plan), .reason = fmt::format("{} [{}]", error.message, error.id)};
}

MeasuredChoices measured_choices(const AttentionSpec& spec, const ProblemShape& shape,
                                 const DeviceFacts& facts, const Winner& winner,
                                 const std::string& file) {
  MeasuredChoices choices;
  const PlanSource source =
      winner.measured_shape == shape ? PlanSource::kMeasured : PlanSource::kNearestBucket;
  std::vector<std::pair<double, PlanChoice>> by_time;
  const auto add = [&](const MeasuredPlan& one) {
    const auto plan = usable_plan(spec, one.plan, facts);
    if (!plan.ok()) {
      choices.unusable.push_back(failed_plan(one.plan, plan.error()));
      return;
    }
    const double us = source == PlanSource::kMeasured
                          ? one.median_us
                          : one.median_us * cost_us(spec, *plan, shape, facts) /
                                cost_us(spec, *plan, winner.measured_shape, facts);
    by_time.emplace_back(us, PlanChoice{*plan, source, one.compiler, file, winner.measured_shape});
  };
  add({winner.plan, winner.compiler, winner.median_us});
  for (const MeasuredPlan& next : winner.runners_up) add(next);
  if (source == PlanSource::kNearestBucket) {
    std::ranges::stable_sort(by_time, {}, [](const auto& entry) { return entry.first; });
  }
  for (auto& [us, choice] : by_time) choices.usable.push_back(std::move(choice));
  return choices;
}

Result<PlanChoice> choose_plan(const AttentionSpec& spec, const ProblemShape& shape,
                               const Device& device, const Store* store) {
  if (store != nullptr) {
    const auto winner = store->winner({.spec_hash = spec_hash(spec),
                                       .device = device.identity(),
                                       .shape = shape,
                                       .protocol = std::string(kMeasurementProtocol)});
    if (winner.ok() && winner->has_value()) {
      MeasuredChoices choices =
          measured_choices(spec, shape, device.facts(), **winner, store->path());
      if (!choices.usable.empty()) return std::move(choices.usable.front());
    }
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device.facts()));
  return PlanChoice{.plan = plan};
}

}  // namespace attune
