#include "runtime/engine/engine.hpp"

namespace attune {
Result<KernelPlan> usable_plan(const AttentionSpec& spec, const std::string& text,
                               const DeviceFacts& facts) {
  ATT_TRY(const KernelPlan plan, parse_plan(text));
  ATT_CHECK(check_plan(spec, plan, facts));
  return plan;
}

Result<PlanChoice> choose_plan(const AttentionSpec& spec, const ProblemShape& shape,
                               const Device& device, const Store* store) {
  if (store != nullptr) {
    const auto winner = store->winner({.spec_hash = spec_hash(spec),
                                       .device = device.identity(),
                                       .shape = shape,
                                       .protocol = std::string(kMeasurementProtocol)});
    if (winner.ok() && winner->has_value()) {
      const Winner& best = **winner;
      if (auto plan = usable_plan(spec, best.plan, device.facts()); plan.ok()) {
        const bool exact = best.measured_shape == shape;
        return PlanChoice{*plan, exact ? PlanSource::kMeasured : PlanSource::kNearestBucket,
                          best.compiler, store->path(), best.measured_shape};
      }
    }
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device.facts()));
  return PlanChoice{.plan = plan};
}

}  // namespace attune
