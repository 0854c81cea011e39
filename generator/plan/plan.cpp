// The dispatcher: what is common to every family, and the table of them.
#include "generator/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <limits>
#include <optional>
#include <span>

#include "generator/plan/distance.hpp"
#include "generator/plan/family.hpp"
#include "generator/plan/plan_space.hpp"
#include "generator/spec/residues.hpp"
#include "generator/spec/run_spec.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

// Best first where several serve one target. A family, or a pass of one, is added by a row here.
constexpr FamilyAccessor kFamilies[] = {
    &sm90a_family,         &sm80_family,           &decode_family,     &mla_family,
    &cpu_family,           &sm90a_backward_family, &sm90a_wide_family, &sm90a_ordered_family,
    &sm80_backward_family, &cpu_backward_family};

Error family_missing(Family family, Pass pass) {
  return plan_unsupported(fmt::format("this build has no {} kernels of the {} family",
                                      to_string(pass), to_string(family)));
}

KernelPlan with_residues(KernelPlan plan, int residues) {
  plan.residues = residues;
  return plan;
}

KernelPlan with_runs(KernelPlan plan) {
  plan.by_runs = true;
  return plan;
}

// Fewer keys are walked before it is known which of them live, and fewer queries do not wait for
// one CTA that looks through all keys.
constexpr std::int64_t kLeastForRuns = 2048;

bool takes_runs(Family family) {
  return family == Family::kSm90a || family == Family::kSm90aOrdered;
}

Status check_items(const AttentionSpec& spec, const KernelPlan& plan) {
  if (!is_packed(spec)) return ok_status();
  const TileShape tile = tile_shape(plan);
  // The backward pass' items are of keys.
  const int least = least_item_rows(plan.target);
  if ((plan.pass == Pass::kForward ? tile.q : tile.kv) >= least) return ok_status();
  return plan_unsupported(fmt::format("a tile of at least {} rows with packed sequences", least));
}

}  // namespace

Error plan_unsupported(std::string message, std::string hint) {
  return Error{.kind = ErrorKind::kUnsupported,
               .id = "plan-unsupported",
               .message = std::move(message),
               .hint = std::move(hint)};
}

Status check_plain_cache(const AttentionSpec& spec, std::string_view family) {
  if (!has_scaled_cache(spec)) return ok_status();
  return plan_unsupported(fmt::format("the {} family reads K and V in the dtype of Q, not in {}",
                                      family, to_string(*spec.kv_dtype)));
}

Status check_shared_memory(const PlanResources& needs, int limit, const DeviceFacts& device) {
  if (needs.shared_memory_bytes <= limit) return ok_status();
  return plan_unsupported(fmt::format("{} bytes of shared memory, {} has {}",
                                      needs.shared_memory_bytes, device.name, limit));
}

std::span<const FamilyAccessor> family_table() { return kFamilies; }

const FamilyOperations* family_operations(Family family, Pass pass) {
  for (const FamilyAccessor accessor : kFamilies) {
    if (accessor().family == family && accessor().pass == pass) return &accessor();
  }
  return nullptr;
}

Status serves(const FamilyOperations& family, const AttentionSpec& spec, Target target) {
  if (spec.batch_invariant && family.template_path_invariant.empty()) {
    return plan_unsupported(fmt::format("the {} family has no batch-invariant {} pass", family.name,
                                        to_string(family.pass)));
  }
  return family.serves(spec, target);
}

int resident_ctas(const PlanResources& resources, const DeviceFacts& device) {
  // The driver keeps 1 KiB of shared memory for each resident CTA and hands registers to warps in
  // units of 256.
  const int shared =
      device.shared_memory_per_processor_bytes / (resources.shared_memory_bytes + 1024);
  const int warp_registers = (resources.registers_per_thread * 32 + 255) / 256 * 256;
  const int warps = std::max(1, resources.threads / 32);
  const int registers = device.registers_per_processor / (warp_registers * warps);
  return std::min({shared, registers, kMaxThreadsPerProcessor / std::max(1, resources.threads)});
}

int plan_distance(const KernelPlan& a, const KernelPlan& b) {
  const FamilyOperations* family = family_operations(a);
  if (family == nullptr || family != family_operations(b)) return INT_MAX;
  const std::vector<int> x = family->choices(a), y = family->choices(b);
  int differing = (a.target != b.target) + (a.residues != b.residues) + (a.by_runs != b.by_runs);
  for (std::size_t i = 0; i < x.size(); ++i) differing += x[i] != y[i];
  return differing;
}

Result<std::vector<Family>> families_for(const AttentionSpec& spec, Target target, Pass pass) {
  std::vector<Family> serving;
  std::string reasons;
  for (const FamilyAccessor accessor : kFamilies) {
    const FamilyOperations& family = accessor();
    if (family.pass != pass) continue;
    if (auto status = serves(family, spec, target); status.ok()) {
      serving.push_back(family.family);
    } else {
      reasons +=
          fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", family.name, status.error().message);
    }
  }
  if (serving.empty()) {
    return plan_unsupported(fmt::format("no kernel family serves this spec's {} pass on {}: {}",
                                        to_string(pass), to_string(target),
                                        reasons.empty() ? "there is none" : reasons));
  }
  return serving;
}

namespace {

// Keys' kernels ask which queries a key has, queries' kernels which keys.
expr::RunsOf runs_of(const KernelPlan& plan) {
  if (plan.pass == Pass::kForward) return expr::RunsOf::kQuery;
  return plan.family() == Family::kSm90a ? expr::RunsOf::kKey : expr::RunsOf::kBoth;
}

}  // namespace

AttentionSpec worked_spec(const AttentionSpec& spec, const KernelPlan& plan) {
  if (plan.residues > 1) return residue_spec(spec);
  return plan.by_runs ? run_spec(spec, runs_of(plan)) : spec;
}

KernelPlan worked_plan(const KernelPlan& plan) {
  KernelPlan worked = plan;
  worked.residues = 1;
  worked.by_runs = false;
  return worked;
}

ProblemShape worked_shape(const ProblemShape& shape, const KernelPlan& plan) {
  return plan.residues > 1 ? residue_shape(shape, plan.residues) : shape;
}

namespace {

std::vector<KernelPlan> whole_plans(const AttentionSpec& spec, Family family,
                                    const DeviceFacts& device, Pass pass) {
  const FamilyOperations* operations = family_operations(family, pass);
  if (operations == nullptr || !serves(*operations, spec, device.target).ok()) return {};
  std::vector<KernelPlan> plans = operations->legal_plans(spec, device);
  std::erase_if(plans, [&](const KernelPlan& plan) { return !check_items(spec, plan).ok(); });
  return plans;
}

}  // namespace

std::vector<KernelPlan> legal_plans(const AttentionSpec& spec, Family family,
                                    const DeviceFacts& device, Pass pass) {
  std::vector<KernelPlan> plans = whole_plans(spec, family, device, pass);
  if (takes_runs(family) && has_runs(spec)) {
    const std::size_t count = plans.size();
    for (std::size_t i = 0; i < count; ++i) plans.push_back(with_runs(plans[i]));
  }
  const int residues = residue_count(spec, pass);
  if (residues == 1) return plans;
  for (const KernelPlan& plan : whole_plans(residue_spec(spec), family, device, pass))
    plans.push_back(with_residues(plan, residues));
  return plans;
}

Status check_worked(const AttentionSpec& spec, const KernelPlan& plan) {
  if (plan.by_runs && (plan.residues > 1 || !takes_runs(plan.family()) || !has_runs(spec))) {
    return plan_unsupported(
        "`runs` is for Hopper's kernels, and masks under which a query sees keys of its own number "
        "in a tensor");
  }
  if (plan.residues == 1 || plan.residues == residue_count(spec, plan.pass)) return ok_status();
  return plan_unsupported(
      fmt::format("`residues{}` is for masks under which a query sees keys of its own remainder by "
                  "{} alone",
                  plan.residues, plan.residues));
}

Status check_plan(const AttentionSpec& spec, const KernelPlan& plan, const DeviceFacts& device) {
  ATT_CHECK(check_worked(spec, plan));
  if (works_on_another_spec(plan))
    return check_plan(worked_spec(spec, plan), worked_plan(plan), device);
  const FamilyOperations* family = family_operations(plan);
  if (family == nullptr) return family_missing(plan.family(), plan.pass);
  ATT_CHECK(serves(*family, spec, plan.target));
  ATT_CHECK(check_items(spec, plan));
  return family->check(spec, plan, device);
}

PlanResources resources(const AttentionSpec& spec, const KernelPlan& plan) {
  if (works_on_another_spec(plan)) return resources(worked_spec(spec, plan), worked_plan(plan));
  const FamilyOperations* family = family_operations(plan);
  return family ? family->resources(spec, plan) : PlanResources{};
}

namespace {

// What runs spare, of the time without them, or cost where sequences are short.
double cost_with_runs(const ProblemShape& shape) {
  return std::min(shape.q_len, shape.kv_len) >= kLeastForRuns ? 0.9 : 1.1;
}

}  // namespace

double cost_us(const AttentionSpec& spec, const KernelPlan& plan, const ProblemShape& given,
               const DeviceFacts& device) {
  if (plan.by_runs) return cost_us(spec, worked_plan(plan), given, device) * cost_with_runs(given);
  if (plan.residues > 1) {
    if (!has_residues(given, plan.residues)) return std::numeric_limits<double>::infinity();
    return cost_us(residue_spec(spec), worked_plan(plan), residue_shape(given, plan.residues),
                   device);
  }
  const ProblemShape shape = typical_shape(spec, given);
  const FamilyOperations* family = family_operations(plan);
  if (family == nullptr) return std::numeric_limits<double>::infinity();
  const Tiling tiling = family->tiling(spec, plan, shape, device);
  const LiveWork work = tiling.tile_q == 0 ? LiveWork{}
                                           : live_work(spec, shape, tiling.tile(),
                                                       tiling.order.value_or(ItemOrder{}));
  return launch_us(family->plan_cost(spec, plan, device),
                   family->shape_cost(spec, plan, shape, device, work));
}

namespace {

// The spec of a residue where launches of the shape can be taken apart.
std::optional<AttentionSpec> residue_part(const AttentionSpec& spec, const ProblemShape& shape,
                                          Pass pass) {
  const int residues = residue_count(spec, pass);
  if (residues == 1 || !has_residues(shape, residues)) return std::nullopt;
  return residue_spec(spec);
}

}  // namespace

// Of equal costs the families' order decides.
Result<std::vector<KernelPlan>> plans_by_cost(const AttentionSpec& spec, const ProblemShape& shape,
                                              const DeviceFacts& device, Pass pass) {
  ATT_TRY(const std::vector<Family> families, families_for(spec, device.target, pass));
  std::vector<std::pair<double, KernelPlan>> costed;
  const auto add = [&](const AttentionSpec& of, const ProblemShape& at) {
    const bool may_have_runs = has_runs(of);
    for (const Family family : families) {
      const auto is_needless = family_operations(family, pass)->need_not_be_measured;
      for (const KernelPlan& plan : whole_plans(of, family, device, pass)) {
        if (is_needless != nullptr && is_needless(of, plan, at)) continue;
        const double us = cost_us(of, plan, at, device);
        costed.emplace_back(us, with_residues(plan, of.residues));
        if (takes_runs(family) && may_have_runs)
          costed.emplace_back(us * cost_with_runs(at), with_runs(plan));
      }
    }
  };
  add(spec, shape);
  if (const auto part = residue_part(spec, shape, pass))
    add(*part, residue_shape(shape, part->residues));
  std::ranges::stable_sort(costed, {}, &std::pair<double, KernelPlan>::first);
  std::vector<KernelPlan> plans;
  for (auto& [us, plan] : costed) plans.push_back(std::move(plan));
  return plans;
}

Result<KernelPlan> default_plan(const AttentionSpec& spec, const ProblemShape& shape,
                                const DeviceFacts& device, Pass pass) {
  Result<KernelPlan> whole = plan_for_any_length(spec, pass, shape, device);
  if (whole.ok() && takes_runs(whole->family()) && has_runs(spec) && cost_with_runs(shape) < 1)
    return with_runs(*whole);
  const auto part = residue_part(spec, shape, pass);
  if (!part) return whole;
  const ProblemShape at = residue_shape(shape, part->residues);
  const auto apart = plan_for_any_length(*part, pass, at, device);
  const bool gains = apart.ok() && (!whole.ok() || cost_us(*part, *apart, at, device) <
                                                       cost_us(spec, *whole, shape, device));
  return gains ? Result<KernelPlan>(with_residues(*apart, part->residues)) : whole;
}

Result<KernelPlan> plan_for_any_length(const AttentionSpec& spec, Pass pass,
                                       const ProblemShape& shape, const DeviceFacts& device) {
  ATT_TRY(const std::vector<Family> families, families_for(spec, device.target, pass));
  if (const auto best = plan_space(spec, device)->best(typical_shape(spec, shape), {.pass = pass}))
    return *best;
  return plan_unsupported(fmt::format("no plan of this spec fits {}", device.name),
                          "smaller head dims need less shared memory and fewer registers");
}

TileShape tile_shape(const KernelPlan& plan) {
  const FamilyOperations* family = family_operations(plan);
  return family ? family->tile_shape(plan) : TileShape{};
}

std::vector<SharedMatrix> shared_matrices(const AttentionSpec& spec, const KernelPlan& plan) {
  if (works_on_another_spec(plan))
    return shared_matrices(worked_spec(spec, plan), worked_plan(plan));
  const FamilyOperations* family = family_operations(plan);
  if (family == nullptr || family->shared_matrices == nullptr) return {};
  return family->shared_matrices(spec, plan);
}

Result<KernelPlan> plan_for_any_strides(const AttentionSpec& spec, Pass pass,
                                        const ProblemShape& shape, const DeviceFacts& device) {
  const auto best = plan_space(spec, device)
                        ->best(typical_shape(spec, shape), {.pass = pass, .any_strides = true});
  if (!best) {
    return plan_unsupported(
        fmt::format("no plan of this spec takes any strides on {}", device.name),
        "the tensor unit takes positive strides that are multiples of 16 bytes");
  }
  return *best;
}

}  // namespace attune
