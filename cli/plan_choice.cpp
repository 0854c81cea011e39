#include "cli/plan_choice.hpp"

#include <fmt/format.h>

#include "runtime/engine/engine.hpp"

namespace attune::cli {
namespace {

std::string describe(PlanSource source) {
  switch (source) {
    case PlanSource::kMeasured:
      return "measured";
    case PlanSource::kNearestBucket:
      return "nearest measured shape";
    case PlanSource::kStandIn:
      return "code that was there";
    case PlanSource::kCostModel:
      return "cost model";
  }
  return "";
}

Error mismatch(std::string_view what, std::string_view plan, std::string_view asked) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "plan-mismatch",
               .message = fmt::format("the plan's {} is {}, asked for is {}", what, plan, asked)};
}

}  // namespace

Result<ChosenPlan> plan_for(const AttentionSpec& spec, const ProblemShape& shape, Target target,
                            Pass pass, const Options& options, Workbench& bench) {
  const DeviceFacts facts = bench.facts(target);
  if (!options.plan.empty()) {
    ATT_TRY(const KernelPlan plan, parse_plan(options.plan));
    if (plan.target != target) return mismatch("target", to_string(plan.target), to_string(target));
    if (plan.pass != pass) return mismatch("pass", to_string(plan.pass), to_string(pass));
    ATT_CHECK(check_plan(spec, plan, facts));
    return ChosenPlan{plan, "--plan"};
  }
  const auto device = bench.device();
  if (device.ok() && device.value()->target() == target) {
    ATT_TRY(const PlanChoice choice,
            choose_plan(spec, shape, *device.value(), bench.store(), pass));
    return ChosenPlan{choice.plan, describe(choice.source), compiler_family(choice.compiler)};
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, facts, pass));
  return ChosenPlan{plan, "cost model"};
}

}  // namespace attune::cli
