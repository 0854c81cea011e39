#include "runtime/engine/workshop.hpp"

namespace attune {

Result<std::shared_ptr<Workshop>> Workshop::open(const std::string& device,
                                                 const std::string& cache_file) {
  ATT_TRY(std::unique_ptr<Device> opened, open_device(device));
  OverlayOptions options = default_overlay();
  if (!cache_file.empty()) options.user_file = cache_file == "none" ? "" : cache_file;
  std::unique_ptr<Overlay> cache = Overlay::open(options);
  cache->refresh(opened->identity());
  return std::shared_ptr<Workshop>(new Workshop(std::move(opened), std::move(cache)));
}

Result<PlanChoice> Workshop::choose(const AttentionSpec& spec, const SpecId& id,
                                    const ProblemShape& shape) const {
  {
    const SnapshotCell::View snapshot = cache_->snapshot();
    const SnapshotAnswer answer = snapshot->find(id, shape);
    if (answer.row != nullptr) {
      if (auto plan = usable_plan(spec, answer.row->plan, device_->facts()); plan.ok()) {
        const bool exact = answer.distance == 0;
        return PlanChoice{*plan, exact ? PlanSource::kMeasured : PlanSource::kNearestBucket,
                          cache_->layers()[static_cast<std::size_t>(answer.row->layer)].path};
      }
    }
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device_->facts()));
  return PlanChoice{plan, PlanSource::kCostModel, ""};
}

Result<Compiler*> Workshop::compiler(Target target) {
  const std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    ATT_TRY(compiler_, open_compiler(target));
  }
  return compiler_.get();
}

Result<std::shared_ptr<LoadedKernel>> Workshop::load(const AttentionSpec& spec,
                                                     const KernelPlan& plan) {
  const std::string key = spec_hash(spec) + ' ' + to_string(plan);
  return kernels_.get(key, [&]() -> Result<std::shared_ptr<LoadedKernel>> {
    ATT_TRY(Compiler * compiler, this->compiler(plan.target));
    ATT_TRY(const BuiltKernel built, build(spec, plan, *compiler, cache_.get()));
    ATT_TRY(std::unique_ptr<LoadedKernel> loaded, device_->load(spec, plan, built.code.image));
    return std::shared_ptr<LoadedKernel>(std::move(loaded));
  });
}

}  // namespace attune
