#include <fmt/format.h>

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
  const auto add = [&](const std::string& text, const std::string& compiler) {
    if (const auto plan = usable_plan(spec, text, facts); plan.ok()) {
      choices.usable.push_back({*plan, source, compiler, file, winner.measured_shape});
    } else {
      choices.unusable.push_back(failed_plan(text, plan.error()));
    }
  };
  add(winner.plan, winner.compiler);
  for (const MeasuredPlan& next : winner.runners_up) add(next.plan, next.compiler);
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
