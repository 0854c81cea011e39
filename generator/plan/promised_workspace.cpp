#include "generator/plan/promised_workspace.hpp"

#include <algorithm>
#include <limits>

namespace attune {
namespace {

// Measured, plans are seldom more than this from what the cost model says of two of a family.
constexpr double kLittleLonger = 1.02;

// Where heads under way might have them instead.
bool has_sums_of_all(const WorkspaceRegion& region) {
  return region.content == WorkspaceRegion::Content::kQuerySums && region.sum_wave > 0 &&
         region.all_have_sums;
}

// Those of `more` that `regions` do not cover yet, in place of what they cover.
void add_promised(std::vector<WorkspaceRegion>& regions, const std::vector<WorkspaceRegion>& more) {
  for (const WorkspaceRegion& region : more) {
    if (covers(regions, {&region, 1})) continue;
    std::erase_if(regions,
                  [&](const WorkspaceRegion& one) { return covers({&region, 1}, {&one, 1}); });
    regions.push_back(region);
  }
}

// Of the plans that are offered.
std::vector<WorkspaceRegion> offered_workspace(const AttentionSpec& spec, Pass pass, Target target,
                                               const ProblemShape& shape,
                                               const DeviceFacts& device) {
  std::vector<WorkspaceRegion> promised = widest_workspace(spec, pass, target);
  if (std::ranges::none_of(promised, has_sums_of_all)) return promised;
  const auto plans = plans_by_cost(spec, shape, device, pass);
  if (!plans.ok()) return promised;
  std::erase_if(promised, has_sums_of_all);
  double least_us = std::numeric_limits<double>::infinity();
  for (const KernelPlan& plan : *plans) {
    if (plan.residues != spec.residues || plan.by_runs) continue;
    const KernelPlan own = worked_plan(plan);
    const double us = cost_us(spec, own, shape, device);
    least_us = std::min(least_us, us);  // the first one's
    const std::vector<WorkspaceRegion> needed = launch_recipe(spec, own).workspace;
    const bool may_come =
        std::ranges::none_of(needed, has_sums_of_all) || us <= kLittleLonger * least_us;
    if (may_come) add_promised(promised, needed);
  }
  return promised;
}

}  // namespace

std::vector<WorkspaceRegion> promised_workspace(const AttentionSpec& spec, const KernelPlan& first,
                                                const ProblemShape& shape,
                                                const DeviceFacts& device) {
  auto promised = offered_workspace(spec, first.pass, first.target, shape, device);
  // A cache file may name any plan that can be run.
  if (first.residues == spec.residues && first.by_runs == spec.runs.has_value())
    add_promised(promised, launch_recipe(spec, worked_plan(first)).workspace);
  return promised;
}

}  // namespace attune
