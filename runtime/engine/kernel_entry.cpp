#include "runtime/engine/kernel_entry.hpp"

#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

// Plans of one spec share the pre-pass; only Hopper's schedules differ in needing a counter.
LaunchRecipe widest_recipe(const AttentionSpec& spec, const KernelPlan& plan) {
  LaunchRecipe recipe = launch_recipe(spec, plan);
  recipe.needs_scheduler_counter |= plan.target == Target::kSm90a;
  return recipe;
}

}  // namespace

KernelEntry::KernelEntry(const KernelKey& key, std::shared_ptr<Workshop> workshop,
                         std::shared_ptr<const AttentionSpec> spec,
                         std::unique_ptr<const KernelVersion> version)
    : key(key),
      workshop_(std::move(workshop)),
      spec_(std::move(spec)),
      promised_(widest_recipe(*spec_, version->choice.plan)),
      current_(version.get()) {
  versions_.push_back(std::move(version));
}

bool KernelEntry::replace(std::unique_ptr<const KernelVersion> version) {
  const LaunchRecipe recipe = launch_recipe(*spec_, version->choice.plan);
  if (recipe.needs_scheduler_counter && !promised_.needs_scheduler_counter) return false;
  if (recipe.range_slots != promised_.range_slots) return false;
  const std::lock_guard lock(mutex_);
  current_.store(version.get(), std::memory_order_release);
  versions_.push_back(std::move(version));
  failed_plans_.clear();
  return true;
}

std::size_t KernelEntry::workspace_bytes(const ProblemShape& shape) const {
  return attune::workspace_bytes(*spec_, promised_, shape);
}

Status KernelEntry::launch(const att::ForwardParams& params, void* workspace,
                           StreamHandle stream) const {
  const KernelVersion& now = version();
  Status status = now.code.kernel->launch(params, workspace, stream);
  if (status.ok() || status.error().id != kStridesUnsupported || !now.fallback) return status;
  return launch_fallback(now, params, workspace, stream);
}

// A launch that the tensor unit cannot do; rare, so the table of loaded code may take its lock.
Status KernelEntry::launch_fallback(const KernelVersion& version, const att::ForwardParams& params,
                                    void* workspace, StreamHandle stream) const {
  fallback_launches_.fetch_add(1, std::memory_order_relaxed);
  ATT_TRY(const LoadedCode code, workshop_->load(*spec_, *version.fallback));
  return code.kernel->launch(params, workspace, stream);
}

std::vector<FailedPlan> KernelEntry::failed_plans() const {
  const std::lock_guard lock(mutex_);
  return failed_plans_;
}

void KernelEntry::set_failed_plans(std::vector<FailedPlan> plans) {
  const std::lock_guard lock(mutex_);
  failed_plans_ = std::move(plans);
}

}  // namespace attune
