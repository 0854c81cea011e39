#include "runtime/engine/workshop.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "cache/winner.hpp"

namespace attune {
namespace {

std::vector<std::string> paths_of(const Overlay& cache) {
  std::vector<std::string> paths;
  for (const LayerStatus& layer : cache.layers()) paths.push_back(layer.path);
  return paths;
}

// Anything but nothing and 0 asks for it: whoever sets the variable to look for a mistake must not
// find none because of a word.
bool is_check_asked_for() {
  const char* asked = std::getenv("ATTUNE_CHECK");
  const std::string_view text = asked == nullptr ? "" : asked;
  return !text.empty() && text != "0";
}

std::string flight_key(const AttentionSpec& spec, const KernelPlan& plan,
                       const std::string& family) {
  return canonical_text(spec) + to_string(plan) + ' ' + family;
}

// Of the spec whose launches bring dropout's seed themselves. Its kernels differ by a few loads, so
// what was measured of them serves until somebody tunes the other.
SpecId id_with_launched_seed(AttentionSpec spec) {
  spec.seed_on_device = false;
  return SpecId::from_hash(spec_hash(spec));
}

// What is told of a launch's data, and what the spec says where nothing is told.
MaskData completed(MaskData told, const AttentionSpec& spec, const ProblemShape& shape) {
  if (!told.is_known()) return said_data(spec, shape);
  if (!is_packed(spec) || (told.live >= 0 && told.lengths.is_known())) return told;
  const MaskData said = said_data(spec, shape);
  if (told.live < 0) {
    told.live = said.live;
    told.full = said.full;
  }
  if (!told.lengths.is_known()) told.lengths = said.lengths;
  return told;
}

// Of the rows of a spec and pass, of which there is one, by shape and data. Slower than
// Snapshot::find(), which knows shapes alone: for choices, not for launches.
const SnapshotRow* nearest_row(const Snapshot& snapshot, const SpecId& id, Pass pass,
                               const ProblemShape& shape, const MaskData& data) {
  const SnapshotRow* best = nullptr;
  double least = 0;
  for (const SnapshotRow& row : snapshot.rows()) {
    if (row.spec != id || row.pass != pass) continue;
    const double distance = cache::launch_distance(row.shape, row.by_data, shape, data);
    if (best != nullptr && distance >= least) continue;  // rows are by layer, then shape
    best = &row;
    least = distance;
  }
  return best;
}

}  // namespace

Result<std::shared_ptr<Workshop>> Workshop::open(const std::string& device,
                                                 const std::string& cache_file,
                                                 std::function<void(const Error&)> warn,
                                                 bool checks_launches) {
  ATT_TRY(std::unique_ptr<Device> opened, open_device(device));
  OverlayOptions options = default_overlay();
  options.store.warn = std::move(warn);
  if (!cache_file.empty()) options.user_file = cache_file == "none" ? "" : cache_file;
  return std::make_shared<Workshop>(std::move(opened), Overlay::open(options), open_compiler,
                                    kCompileSeconds, checks_launches || is_check_asked_for());
}

Workshop::Workshop(std::unique_ptr<Device> device, std::unique_ptr<Overlay> cache,
                   CompilerOpener opener, double compile_seconds, bool checks_launches)
    : device_(std::move(device)),
      cache_(std::move(cache)),
      cache_files_(paths_of(*cache_)),
      opener_(std::move(opener)),
      compile_seconds_(compile_seconds),
      checks_launches_(checks_launches) {
  refresh_snapshot();
}

// Under a lock, so that whoever comes second and finds nothing new returns after the version is.
bool Workshop::refresh_snapshot() {
  const std::lock_guard lock(refresh_mutex_);
  if (!cache_->refresh(device_->identity())) return false;
  snapshot_version_.fetch_add(1, std::memory_order_release);
  return true;
}

MeasuredChoices Workshop::measured(const AttentionSpec& spec, const SpecId& id, Pass pass,
                                   const ProblemShape& shape, const MaskData& data) const {
  const SnapshotCell::View snapshot = cache_->snapshot();
  SpecId known = id;
  const SnapshotRow* row = snapshot->find(known, pass, shape).row;
  if (row == nullptr && spec.seed_on_device) {
    known = id_with_launched_seed(spec);
    row = snapshot->find(known, pass, shape).row;
  }
  if (row == nullptr) return {};
  const MaskData told =
      row->by_data.size() > 1 || data.is_known() ? completed(data, spec, shape) : data;
  if (told.is_known()) row = nearest_row(*snapshot, known, pass, shape, told);
  Winner winner = row->winner();
  if (winner.by_data.size() > 1) winner = on_data(std::move(winner), told);
  return measured_choices(spec, pass, shape, device_->facts(), winner,
                          cache_files_[static_cast<std::size_t>(row->layer)]);
}

bool Workshop::is_measured(const SpecId& id, Pass pass, const ProblemShape& shape) const noexcept {
  return cache_->snapshot()->find_exact(id, pass, shape) != nullptr;
}

bool Workshop::is_measured_within(const SpecId& id, Pass pass,
                                  const ProblemShape& bucket) const noexcept {
  const SnapshotCell::View snapshot = cache_->snapshot();
  return std::ranges::any_of(snapshot->rows_of(id, pass), [&](const SnapshotRow& row) {
    return row.shape != bucket && bucket_of(row.shape, Grain::kFine) == bucket;
  });
}

Result<PlanChoice> Workshop::choose(const AttentionSpec& spec, const SpecId& id, Pass pass,
                                    const ProblemShape& shape) const {
  MeasuredChoices choices = measured(spec, id, pass, shape);
  if (!choices.usable.empty()) return std::move(choices.usable.front());
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device_->facts(), pass));
  return PlanChoice{.plan = plan};
}

Result<Compiler*> Workshop::compiler(Target target, const std::string& family) {
  const std::lock_guard lock(mutex_);
  auto& compiler = compilers_[family];
  if (compiler == nullptr) {
    ATT_TRY(std::unique_ptr<Compiler> opened, opener_(target, family));
    // Assembling PTX must not end a capture of another thread's.
    compiler = with_deadline(std::move(opened), compile_seconds_,
                             [this] { return device_->spare_captures(); });
  }
  return compiler.get();
}

std::optional<BuiltKernel> Workshop::find_without_compiler(const AttentionSpec& spec,
                                                           const KernelPlan& plan,
                                                           const std::string& family) {
  auto found = find_built(spec, plan, nullptr, *cache_, family);
  if (!found.ok() || !found->has_value()) return std::nullopt;
  ++counters_.from_cache;
  ++counters_.from_cache_without_compiler;
  return std::move(*found);
}

Result<BuiltKernel> Workshop::build_or_find(const AttentionSpec& spec, const KernelPlan& plan,
                                            const std::string& family) {
  auto compiler = this->compiler(plan.target, family);
  if (!compiler.ok() && !family.empty()) {
    if (auto found = find_without_compiler(spec, plan, family)) return *std::move(found);
    compiler = this->compiler(plan.target);
  }
  if (compiler.ok()) {
    auto built = build(spec, plan, **compiler, cache_.get());
    if (!built.ok()) ++counters_.failed_compiles;
    if (built.ok()) ++(built->from_cache ? counters_.from_cache : counters_.compiles);
    return built;
  }
  if (compiler.error().kind != ErrorKind::kUnavailable) return compiler.error();
  if (auto found = find_without_compiler(spec, plan, "")) return *std::move(found);
  Error missing = compiler.error();
  missing.message += "; and no cache file has the code of `" + to_string(plan) + "`";
  return missing;
}

Result<BuiltKernel> Workshop::compile_afresh(const AttentionSpec& spec, const KernelPlan& plan,
                                             const std::string& family) {
  auto compiler = this->compiler(plan.target, family);
  if (!compiler.ok()) compiler = this->compiler(plan.target);
  if (!compiler.ok()) return compiler.error();
  auto built = build(spec, plan, **compiler, nullptr);
  ++(built.ok() ? counters_.compiles : counters_.failed_compiles);
  return built;
}

Result<std::shared_ptr<LoadedCode>> Workshop::load_code(const AttentionSpec& spec,
                                                        const BuiltKernel& built) {
  ATT_TRY(std::unique_ptr<LoadedKernel> loaded, device_->load(spec, built.plan, built.code.image));
  const std::lock_guard lock(mutex_);
  loaded_.emplace_back(canonical_text(spec), built.plan);
  return std::make_shared<LoadedCode>(LoadedCode{std::move(loaded), built.key.compiler});
}

Result<LoadedCode> Workshop::load(const AttentionSpec& spec, const KernelPlan& plan,
                                  const std::string& family) {
  const auto captures = device_->spare_captures();
  const std::string key = flight_key(spec, plan, family);
  const auto code = kernels_.get(key, [&]() -> Result<std::shared_ptr<LoadedCode>> {
    ATT_TRY(const std::shared_ptr<BuiltKernel> built, build_once(key, spec, plan, family));
    auto loaded = load_code(spec, *built);
    if (loaded.ok() || !built->from_cache) return loaded;
    // Stored under another driver, perhaps, or not what it says it is.
    const auto afresh = compile_afresh(spec, plan, family);
    return afresh.ok() ? load_code(spec, *afresh) : loaded;
  });
  builds_.forget(key);  // not before others find the code: build_ahead() would build again
  if (!code.ok()) return code.error();
  return **code;
}

Status Workshop::build_ahead(const AttentionSpec& spec, const KernelPlan& plan,
                             const std::string& family) {
  const std::string key = flight_key(spec, plan, family);
  if (kernels_.find(key) != nullptr) return ok_status();
  ATT_CHECK(build_once(key, spec, plan, family));
  // Loaded meanwhile from a cache file: whoever did so found no build that could be forgotten.
  if (kernels_.find(key) != nullptr) builds_.forget(key);
  return ok_status();
}

Result<std::shared_ptr<BuiltKernel>> Workshop::build_once(const std::string& key,
                                                          const AttentionSpec& spec,
                                                          const KernelPlan& plan,
                                                          const std::string& family) {
  return builds_.get(key, [&]() -> Result<std::shared_ptr<BuiltKernel>> {
    ATT_TRY(BuiltKernel built, build_or_find(spec, plan, family));
    return std::make_shared<BuiltKernel>(std::move(built));
  });
}

Result<LoadedCode> Workshop::load_ready(const AttentionSpec& spec, const KernelPlan& plan,
                                        const std::string& family) {
  const std::string key = flight_key(spec, plan, family);
  if (const std::shared_ptr<LoadedCode> known = kernels_.find(key)) return *known;
  const std::shared_ptr<const BuiltKernel> ahead = builds_.find(key);  // counted
  std::optional<BuiltKernel> stored;
  bool has_compiler = true;
  if (ahead == nullptr) {
    const auto compiler = this->compiler(plan.target, family);
    has_compiler = compiler.ok();
    ATT_TRY(stored, find_built(spec, plan, has_compiler ? *compiler : nullptr, *cache_, family));
    if (!stored) return LoadedCode{};
  }
  const auto code = kernels_.get(key, [&]() -> Result<std::shared_ptr<LoadedCode>> {
    if (ahead != nullptr) return load_code(spec, *ahead);
    ++counters_.from_cache;
    if (!has_compiler) ++counters_.from_cache_without_compiler;
    return load_code(spec, *stored);
  });
  builds_.forget(key);
  if (!code.ok()) return code.error();
  return **code;
}

std::vector<KernelPlan> Workshop::ready_plans(const AttentionSpec& spec, Pass pass) const {
  const std::string text = canonical_text(spec);
  std::vector<KernelPlan> plans;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [loaded_text, plan] : loaded_) {
      if (loaded_text == text && plan.pass == pass) plans.push_back(plan);
    }
  }
  if (const auto stored = cache_->stored_builds(spec_hash(spec)); stored.ok()) {
    for (const BuildKey& key : *stored) {
      auto plan = usable_plan(spec, pass, key.plan, device_->facts());
      if (plan.ok() && std::ranges::find(plans, *plan) == plans.end()) plans.push_back(*plan);
    }
  }
  return plans;
}

}  // namespace attune
