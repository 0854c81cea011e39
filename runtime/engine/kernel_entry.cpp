#include "runtime/engine/kernel_entry.hpp"

namespace attune {

KernelEntry::KernelEntry(const KernelKey& key, std::shared_ptr<Workshop> workshop,
                         std::shared_ptr<const AttentionSpec> spec,
                         std::unique_ptr<const KernelVersion> version)
    : key(key),
      workshop_(std::move(workshop)),
      spec_(std::move(spec)),
      promised_(widest_workspace(*spec_, version->choice.plan.pass, version->choice.plan.target)),
      current_(version.get()) {
  versions_.push_back(std::move(version));
}

bool KernelEntry::replace(std::unique_ptr<const KernelVersion> version) {
  if (!covers(promised_, launch_recipe(*spec_, version->choice.plan).workspace)) return false;
  const std::lock_guard lock(mutex_);
  current_.store(version.get(), std::memory_order_release);
  versions_.push_back(std::move(version));
  failed_plans_.clear();
  return true;
}

std::size_t KernelEntry::workspace_bytes(const ProblemShape& shape) const {
  return static_cast<std::size_t>(attune::workspace_bytes(*spec_, promised_, shape));
}

Status KernelEntry::launch(const att::LaunchParams& params, void* workspace,
                           StreamHandle stream) const {
  const KernelVersion& now = version();
  Status status = now.code.kernel->launch(params, workspace, stream);
  if (status.ok() || status.error().id != kStridesUnsupported || !now.fallback) return status;
  return launch_fallback(now, params, workspace, stream);
}

// A launch that the tensor unit cannot do; rare, so the table of loaded code may take its lock.
Status KernelEntry::launch_fallback(const KernelVersion& version, const att::LaunchParams& params,
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

MaskData KernelEntry::data() const {
  const std::lock_guard lock(mutex_);
  return data_;
}

void KernelEntry::set_data(const MaskData& data) {
  const std::lock_guard lock(mutex_);
  data_ = data;
}

}  // namespace attune
