#include "runtime/engine/workshop.hpp"

#include <algorithm>

namespace attune {
namespace {

std::vector<std::string> paths_of(const Overlay& cache) {
  std::vector<std::string> paths;
  for (const LayerStatus& layer : cache.layers()) paths.push_back(layer.path);
  return paths;
}

std::string flight_key(const AttentionSpec& spec, const KernelPlan& plan) {
  return spec_hash(spec) + ' ' + to_string(plan);
}

}  // namespace

Result<std::shared_ptr<Workshop>> Workshop::open(const std::string& device,
                                                 const std::string& cache_file) {
  ATT_TRY(std::unique_ptr<Device> opened, open_device(device));
  OverlayOptions options = default_overlay();
  if (!cache_file.empty()) options.user_file = cache_file == "none" ? "" : cache_file;
  return std::make_shared<Workshop>(std::move(opened), Overlay::open(options));
}

Workshop::Workshop(std::unique_ptr<Device> device, std::unique_ptr<Overlay> cache,
                   CompilerOpener opener)
    : device_(std::move(device)),
      cache_(std::move(cache)),
      cache_files_(paths_of(*cache_)),
      opener_(std::move(opener)) {
  refresh_snapshot();
}

bool Workshop::refresh_snapshot() { return cache_->refresh(device_->identity()); }

Result<PlanChoice> Workshop::choose(const AttentionSpec& spec, const SpecId& id,
                                    const ProblemShape& shape) const {
  {
    const SnapshotCell::View snapshot = cache_->snapshot();
    const SnapshotAnswer answer = snapshot->find(id, shape);
    if (answer.row != nullptr) {
      if (auto plan = usable_plan(spec, answer.row->plan, device_->facts()); plan.ok()) {
        const bool exact = answer.distance == 0;
        return PlanChoice{*plan, exact ? PlanSource::kMeasured : PlanSource::kNearestBucket,
                          cache_files_[static_cast<std::size_t>(answer.row->layer)],
                          answer.row->shape};
      }
    }
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device_->facts()));
  return PlanChoice{.plan = plan};
}

Result<Compiler*> Workshop::compiler(Target target) {
  const std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    ATT_TRY(compiler_, opener_(target));
  }
  return compiler_.get();
}

Result<BuiltKernel> Workshop::build_or_find(const AttentionSpec& spec, const KernelPlan& plan) {
  auto compiler = this->compiler(plan.target);
  if (compiler.ok()) {
    auto built = build(spec, plan, **compiler, cache_.get());
    if (!built.ok()) ++counters_.failed_compiles;
    if (built.ok()) ++(built->from_cache ? counters_.from_cache : counters_.compiles);
    return built;
  }
  if (compiler.error().kind != ErrorKind::kUnavailable) return compiler.error();
  auto found = find_built(spec, plan, nullptr, *cache_);
  if (found.ok() && found->has_value()) {
    ++counters_.from_cache;
    ++counters_.from_cache_without_compiler;
    return std::move(**found);
  }
  Error missing = compiler.error();
  missing.message += "; and no cache file has the code of `" + to_string(plan) + "`";
  return missing;
}

Result<std::shared_ptr<LoadedKernel>> Workshop::load_code(const AttentionSpec& spec,
                                                          const BuiltKernel& built) {
  ATT_TRY(std::unique_ptr<LoadedKernel> loaded, device_->load(spec, built.plan, built.code.image));
  const std::lock_guard lock(mutex_);
  loaded_.emplace_back(spec_hash(spec), built.plan);
  return std::shared_ptr<LoadedKernel>(std::move(loaded));
}

Result<std::shared_ptr<LoadedKernel>> Workshop::load(const AttentionSpec& spec,
                                                     const KernelPlan& plan) {
  return kernels_.get(flight_key(spec, plan), [&]() -> Result<std::shared_ptr<LoadedKernel>> {
    ATT_TRY(const BuiltKernel built, build_or_find(spec, plan));
    return load_code(spec, built);
  });
}

Result<std::shared_ptr<LoadedKernel>> Workshop::load_ready(const AttentionSpec& spec,
                                                           const KernelPlan& plan) {
  const std::string key = flight_key(spec, plan);
  if (std::shared_ptr<LoadedKernel> known = kernels_.find(key)) return known;
  const auto compiler = this->compiler(plan.target);
  ATT_TRY(const std::optional<BuiltKernel> found,
          find_built(spec, plan, compiler.ok() ? *compiler : nullptr, *cache_));
  if (!found) return std::shared_ptr<LoadedKernel>();
  return kernels_.get(key, [&]() -> Result<std::shared_ptr<LoadedKernel>> {
    ++counters_.from_cache;
    if (!compiler.ok()) ++counters_.from_cache_without_compiler;
    return load_code(spec, *found);
  });
}

std::vector<KernelPlan> Workshop::ready_plans(const AttentionSpec& spec) const {
  const std::string hash = spec_hash(spec);
  std::vector<KernelPlan> plans;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [loaded_hash, plan] : loaded_) {
      if (loaded_hash == hash) plans.push_back(plan);
    }
  }
  if (const auto stored = cache_->stored_builds(hash); stored.ok()) {
    for (const BuildKey& key : *stored) {
      auto plan = usable_plan(spec, key.plan, device_->facts());
      if (plan.ok() && std::ranges::find(plans, *plan) == plans.end()) plans.push_back(*plan);
    }
  }
  return plans;
}

}  // namespace attune
