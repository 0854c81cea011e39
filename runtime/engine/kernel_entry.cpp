#include "runtime/engine/kernel_entry.hpp"

#include <algorithm>

#include "generator/plan/any_pages.hpp"
#include "generator/plan/promised_workspace.hpp"
#include "generator/spec/residues.hpp"
#include "generator/spec/run_spec.hpp"

namespace attune {

std::vector<KernelEntry::Promise> KernelEntry::promises(
    const std::shared_ptr<const AttentionSpec>& spec, const KernelPlan& plan,
    const ProblemShape& shape, const DeviceFacts& device) {
  std::vector<Promise> promised = {{spec, promised_workspace(*spec, plan, shape, device)}};
  if (const int residues = residue_count(*spec, plan.pass); residues > 1) {
    const auto part = std::make_shared<const AttentionSpec>(residue_spec(*spec));
    const ProblemShape of_part =
        has_residues(shape, residues) ? residue_shape(shape, residues) : shape;
    promised.push_back({part, promised_workspace(*part, plan, of_part, device)});
  }
  if (plan.target == Target::kSm90a && has_runs(*spec)) {
    const expr::RunsOf whose =
        plan.pass == Pass::kForward ? expr::RunsOf::kQuery : expr::RunsOf::kBoth;
    const auto told = std::make_shared<const AttentionSpec>(run_spec(*spec, whose));
    promised.push_back({told, promised_workspace(*told, plan, shape, device)});
  }
  return promised;
}

KernelEntry::KernelEntry(const KernelKey& key, std::shared_ptr<Workshop> workshop,
                         std::shared_ptr<const AttentionSpec> spec,
                         std::unique_ptr<const KernelVersion> version)
    : key(key),
      workshop_(std::move(workshop)),
      spec_(std::move(spec)),
      checks_launches_(workshop_->checks_launches() && is_packed(*spec_)),
      promised_(promises(spec_, version->choice.plan, key.shape, workshop_->device().facts())),
      current_(version.get()) {
  versions_.push_back(std::move(version));
}

bool KernelEntry::replace(std::unique_ptr<const KernelVersion> version) {
  const KernelPlan& plan = version->choice.plan;
  const bool has_room = std::ranges::any_of(promised_, [&](const Promise& promise) {
    return promise.spec->residues == plan.residues &&
           promise.spec->runs.has_value() == plan.by_runs &&
           covers(promise.regions, launch_recipe(*spec_, plan).workspace);
  });
  if (!has_room) return false;
  const std::lock_guard lock(mutex_);
  current_.store(version.get(), std::memory_order_release);
  versions_.push_back(std::move(version));
  failed_plans_.clear();
  return true;
}

bool KernelEntry::return_to(const PlanChoice& choice) {
  const std::lock_guard lock(mutex_);
  const auto version =
      std::ranges::find_if(versions_, [&](const auto& one) { return one->choice == choice; });
  if (version == versions_.end()) return false;
  current_.store(version->get(), std::memory_order_release);
  failed_plans_.clear();
  return true;
}

std::size_t KernelEntry::workspace_bytes(const ProblemShape& shape) const {
  std::int64_t bytes = 0;
  for (const Promise& promise : promised_) {
    const int residues = promise.spec->residues;
    if (!has_residues(shape, residues)) continue;
    bytes = std::max(bytes, attune::workspace_bytes(*promise.spec, promise.regions,
                                                    residue_shape(shape, residues)));
  }
  return static_cast<std::size_t>(bytes);
}

Status KernelEntry::launch(const att::LaunchParams& params, void* workspace,
                           StreamHandle stream) const {
  const KernelVersion& now = version();
  if (now.for_small_boxes && has_small_boxes(now.choice.plan, params.page_table.page_size)) {
    if (const auto kernel = now.for_small_boxes->get(*spec_, *workshop_); kernel.ok()) {
      Status status = (*kernel)->launch(params, workspace, stream);
      if (status.ok() || status.error().id != kStridesUnsupported) return status;
    }
  }
  Status status = now.code.kernel->launch(params, workspace, stream);
  if (status.ok() || status.error().id != kStridesUnsupported || now.fallbacks.empty())
    return status;
  return launch_fallback(now, params, workspace, stream);
}

// A launch that the version's own code cannot do.
Status KernelEntry::launch_fallback(const KernelVersion& version, const att::LaunchParams& params,
                                    void* workspace, StreamHandle stream) const {
  fallback_launches_.fetch_add(1, std::memory_order_relaxed);
  std::optional<Error> why_not;
  for (const auto& code : version.fallbacks) {
    const Result<const LoadedKernel*> kernel = code->get(*spec_, *workshop_);
    const Status status =
        kernel.ok() ? (*kernel)->launch(params, workspace, stream) : Status(kernel.error());
    if (status.ok()) return status;
    // What does not compile says no more of the next one than strides that it cannot have.
    if (kernel.ok() && status.error().id != kStridesUnsupported) return status;
    if (!why_not || !kernel.ok()) why_not = status.error();
  }
  return *why_not;
}

std::vector<FailedPlan> KernelEntry::failed_plans() const {
  const std::lock_guard lock(mutex_);
  return failed_plans_;
}

void KernelEntry::set_failed_plans(std::vector<FailedPlan> plans) {
  const std::lock_guard lock(mutex_);
  failed_plans_ = std::move(plans);
}

MaskData KernelEntry::data() const {
  const std::lock_guard lock(mutex_);
  return data_;
}

}  // namespace attune
