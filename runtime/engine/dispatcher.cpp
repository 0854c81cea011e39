#include "runtime/engine/dispatcher.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <system_error>
#include <tuple>

#include "cache/winner.hpp"
#include "generator/plan/any_pages.hpp"

namespace attune {
namespace {

// Of whole sequences, if `plan` takes them apart; for pages of any size, if the one before needs
// large ones; and for any strides, if it needs some.
std::vector<KernelPlan> fallback_plans(const AttentionSpec& spec, const KernelPlan& plan,
                                       const ProblemShape& shape, const DeviceFacts& facts) {
  std::vector<KernelPlan> fallbacks;
  if (plan.residues > 1) {
    const auto whole = plan_for_any_length(spec, plan.pass, shape, facts);
    if (whole.ok()) fallbacks.push_back(*whole);
  }
  const KernelPlan last = fallbacks.empty() ? plan : fallbacks.back();
  if (const auto by_rows = plan_for_any_pages(spec, last, facts)) fallbacks.push_back(*by_rows);
  if (launch_recipe(spec, last).needs_tensor_maps()) {
    const auto best = plan_for_any_strides(spec, plan.pass, shape, facts);
    if (best.ok()) fallbacks.push_back(*best);
  }
  return fallbacks;
}

// Of the cost model's plans. A compiler may fail at one that takes all registers; at so many, it is
// no accident.
constexpr std::size_t kPlansToTry = 4;

// Of plans, the cheapest of each family, tile and number of threads, and those behind it that need
// fewer registers: where the compiler runs out of them it does so in all orders of the same tile's
// items, but not where K, say, stays in shared memory.
std::vector<KernelPlan> unlike_plans(const AttentionSpec& spec,
                                     const std::vector<KernelPlan>& by_cost, std::size_t limit) {
  std::vector<KernelPlan> chosen;
  for (const KernelPlan& plan : by_cost) {
    if (chosen.size() == limit) break;
    const TileShape tile = tile_shape(plan);
    const PlanResources needs = resources(spec, plan);
    const auto is_no_easier = [&](const KernelPlan& other) {
      const TileShape others = tile_shape(other);
      const PlanResources others_needs = resources(spec, other);
      return plan.family() == other.family() && plan.by_runs == other.by_runs &&
             tile.q == others.q && tile.kv == others.kv && needs.threads == others_needs.threads &&
             needs.registers_per_thread >= others_needs.registers_per_thread;
    };
    if (std::ranges::none_of(chosen, is_no_easier)) chosen.push_back(plan);
  }
  return chosen;
}

}  // namespace

Dispatcher::Dispatcher(std::shared_ptr<Workshop> workshop, bool background,
                       std::size_t most_kernels)
    : workshop_(std::move(workshop)), background_(background), kernels_(most_kernels) {
  if (background) worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

Dispatcher::~Dispatcher() {
  worker_ = {};
  ahead_.clear();
  for (KernelEntry* entry : queue_) entry->release();
  kernels_.for_each([](KernelEntry& entry) { entry.release(); });
}

// `known`: the entry of the bucket `fine`, which also serves the shape that stands for it; may be
// null.
KernelEntry* Dispatcher::find_own(const KernelKey& fine, KernelEntry* known,
                                  const ProblemShape& shape) const noexcept {
  // Taken before the look: a snapshot that comes in between is looked at again.
  const std::uint64_t version = workshop_->snapshot_version();
  if (known != nullptr && known->serves(version) == KernelEntry::Serves::kUnknown) {
    known->set_serves_all(version,
                          !workshop_->is_measured_within(fine.spec, fine.pass, fine.shape));
  }
  if (fine.shape != shape && workshop_->is_measured(fine.spec, fine.pass, shape)) {
    KernelEntry* own = kernels_.find({fine.spec, shape, fine.pass, Grain::kExact});
    if (own != nullptr || !kernels_.is_full()) return own;
  }
  if (known != nullptr || !kernels_.is_full()) return known;
  return kernels_.find({fine.spec, bucket_of(shape, Grain::kCoarse), fine.pass, Grain::kCoarse});
}

KernelKey Dispatcher::new_key(const SpecId& id, const ProblemShape& shape,
                              Pass pass) const noexcept {
  if (kernels_.is_full()) return {id, bucket_of(shape, Grain::kCoarse), pass, Grain::kCoarse};
  const ProblemShape bucket = bucket_of(shape, Grain::kFine);
  if (bucket != shape && workshop_->is_measured(id, pass, shape))
    return {id, shape, pass, Grain::kExact};
  return {id, bucket, pass, Grain::kFine};
}

Result<KernelEntry*> Dispatcher::get(const std::shared_ptr<const AttentionSpec>& spec,
                                     const SpecId& id, const ProblemShape& shape, Pass pass) {
  const KernelKey fine{id, bucket_of(shape, Grain::kFine), pass, Grain::kFine};
  KernelEntry* known = kernels_.find(fine);
  // Most look-ups end here, and the snapshot, whose readers are counted, is not asked.
  if (known == nullptr ||
      known->serves(workshop_->snapshot_version()) != KernelEntry::Serves::kAll) {
    known = find_own(fine, known, shape);
  }
  if (known == nullptr) return make(spec, id, shape, pass);
  known->count_hit();
  known->retain();
  return known;
}

// At a first use.
Result<KernelEntry*> Dispatcher::make(const std::shared_ptr<const AttentionSpec>& spec,
                                      const SpecId& id, const ProblemShape& shape, Pass pass) {
  ++counters_.misses;
  if (pass == Pass::kForward && std::ranges::count(spec->passes, Pass::kBackward) > 0) {
    build_backward_ahead(spec, id, shape);
  }
  FirstVersion first;
  KernelKey key = new_key(id, shape, pass);
  if (background()) first.version = in_use(*spec, key);
  if (first.version != nullptr) {
    first.better_is_known = true;
    ++counters_.stand_ins;
  } else {
    if (workshop_->refresh_snapshot()) enqueue_all();
    key = new_key(id, shape, pass);
    ATT_TRY(first, first_version(*spec, key));
  }
  auto* made = new KernelEntry(key, workshop_, spec, std::move(first.version));
  made->set_failed_plans(std::move(first.failed_plans));
  made->retain();
  KernelEntry* kept = kernels_.add(made);
  if (kept == made) {
    if (first.better_is_known) enqueue(*made);
    return made;
  }
  made->release();
  if (kept == nullptr) return made;  // the table is full: the caller's reference is the only one
  made->release();                   // another thread was first
  kept->retain();
  return kept;
}

// A host that trains asks for it next. Both compiles take about as long, so its first step waits
// for one of them instead of both.
void Dispatcher::build_backward_ahead(const std::shared_ptr<const AttentionSpec>& spec,
                                      const SpecId& id, const ProblemShape& shape) {
  const auto build = [this, spec, key = new_key(id, shape, Pass::kBackward)] {
    try {
      const auto choice = workshop_->choose(*spec, key.spec, key.pass, key.shape);
      if (!choice.ok()) return;
      std::ignore = workshop_->build_ahead(*spec, choice->plan, compiler_family(choice->compiler));
    } catch (const std::exception&) {  // out of memory
    }
  };
  const auto has_ended = [](const std::future<void>& each) {
    return each.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  const std::lock_guard lock(mutex_);
  std::erase_if(ahead_, has_ended);
  try {
    ahead_.push_back(std::async(std::launch::async, build));
  } catch (const std::system_error&) {  // no thread is to be had
  }
}

// The code that the spec's kernel of the pass has at the nearest shape; null: there is none.
std::unique_ptr<const KernelVersion> Dispatcher::in_use(const AttentionSpec& spec,
                                                        const KernelKey& key) const {
  const KernelEntry* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  kernels_.for_each([&](const KernelEntry& entry) {
    if (entry.key.spec != key.spec || entry.key.pass != key.pass) return;
    const double distance = cache::bucket_distance(entry.key.shape, key.shape);
    if (distance >= least) return;
    least = distance;
    nearest = &entry;
  });
  if (nearest == nullptr) return nullptr;
  const KernelVersion& now = nearest->version();
  return make_version(spec, key.shape, {.plan = now.choice.plan, .source = PlanSource::kStandIn},
                      now.code);
}

Result<Dispatcher::FirstVersion> Dispatcher::first_version(const AttentionSpec& spec,
                                                           const KernelKey& key) {
  MeasuredChoices choices = workshop_->measured(spec, key.spec, key.pass, key.shape);
  FirstVersion first{.failed_plans = std::move(choices.unusable)};
  const auto take = [&](const PlanChoice& choice, LoadedCode code) {
    first.version = make_version(spec, key.shape, choice, std::move(code));
  };
  if (choices.usable.empty()) {
    ATT_TRY(const KernelPlan guess,
            default_plan(spec, key.shape, workshop_->device().facts(), key.pass));
    choices.usable.push_back({.plan = guess});
  }
  if (background()) {
    const PlanChoice& best = choices.usable.front();
    auto ready = workshop_->load_ready(spec, best.plan, compiler_family(best.compiler));
    if (ready.ok() && ready->kernel != nullptr) {
      take(best, *std::move(ready));
      return first;
    }
    if (auto other = stand_in(spec, key)) {
      first.version = std::move(other);
      first.better_is_known = true;
      return first;
    }
  }
  // Nothing of the spec is there to begin with, and the best plan takes no longer than another.
  Status failure = ok_status();
  bool compiler_missing = false, late = false;
  const auto attempt = [&](const PlanChoice& choice) {
    auto loaded = workshop_->load(spec, choice.plan, compiler_family(choice.compiler));
    if (loaded.ok()) {
      take(choice, *std::move(loaded));
      return true;
    }
    compiler_missing = compiler_missing || loaded.error().kind == ErrorKind::kUnavailable;
    late = late || loaded.error().id == kCompileDeadline;
    first.failed_plans.push_back(failed_plan(to_string(choice.plan), loaded.error()));
    if (failure.ok()) failure = loaded.error();
    return false;
  };
  for (const PlanChoice& choice : choices.usable) {
    if (attempt(choice)) return first;
    if (late) return failure.error();  // what is too long is so in every plan
  }
  if (compiler_missing) {  // whatever code there is
    first.version = stand_in(spec, key);
    if (first.version != nullptr) return first;
  } else {
    const auto plans = plans_by_cost(spec, key.shape, workshop_->device().facts(), key.pass);
    for (const KernelPlan& plan :
         plans.ok() ? unlike_plans(spec, *plans, kPlansToTry) : std::vector<KernelPlan>{}) {
      const auto tried = std::ranges::find(choices.usable, plan, &PlanChoice::plan);
      if (tried == choices.usable.end() && attempt({.plan = plan})) return first;
    }
  }
  return failure.error();
}

// The fastest, by the cost model, of the plans whose code is there; null: there is none.
std::unique_ptr<const KernelVersion> Dispatcher::stand_in(const AttentionSpec& spec,
                                                          const KernelKey& key) {
  std::vector<KernelPlan> plans = workshop_->ready_plans(spec, key.pass);
  std::ranges::stable_sort(plans, {}, [&](const KernelPlan& plan) {
    return cost_us(spec, plan, key.shape, workshop_->device().facts());
  });
  for (const KernelPlan& plan : plans) {
    auto code = workshop_->load_ready(spec, plan);
    if (!code.ok() || code->kernel == nullptr) continue;  // damaged, or of an older source
    ++counters_.stand_ins;
    return make_version(spec, key.shape, {.plan = plan, .source = PlanSource::kStandIn},
                        *std::move(code));
  }
  return nullptr;
}

std::unique_ptr<const KernelVersion> Dispatcher::make_version(const AttentionSpec& spec,
                                                              const ProblemShape& shape,
                                                              PlanChoice choice,
                                                              LoadedCode code) const {
  const DeviceFacts& facts = workshop_->device().facts();
  const auto on_demand = [family = compiler_family(code.compiler)](const KernelPlan& plan) {
    return std::make_unique<CodeOnDemand>(plan, family);
  };
  std::vector<std::unique_ptr<CodeOnDemand>> fallbacks;
  for (const KernelPlan& other : fallback_plans(spec, choice.plan, shape, facts))
    fallbacks.push_back(on_demand(other));
  std::unique_ptr<CodeOnDemand> for_small_boxes;
  if (const auto twin = plan_for_small_boxes(spec, choice.plan, facts))
    for_small_boxes = on_demand(*twin);
  std::string plan = to_string(choice.plan);
  return std::make_unique<const KernelVersion>(KernelVersion{std::move(choice), std::move(plan),
                                                             std::move(code), std::move(fallbacks),
                                                             std::move(for_small_boxes)});
}

// Takes the best plan that can be had, up to the one that runs. `retry`: also plans that could not
// be had before. The first failure, also when a lesser plan was found.
Status Dispatcher::improve(KernelEntry& entry, bool retry) {
  const std::lock_guard lock(improve_mutex_);
  const AttentionSpec& spec = entry.spec();
  MeasuredChoices choices =
      workshop_->measured(spec, entry.key.spec, entry.key.pass, entry.key.shape, entry.data());
  const auto guess =
      default_plan(spec, entry.key.shape, workshop_->device().facts(), entry.key.pass);
  if (guess.ok()) choices.usable.push_back({.plan = *guess});
  const std::vector<FailedPlan> failed_before = entry.failed_plans();
  std::vector<FailedPlan> failed = std::move(choices.unusable);
  Status failure = guess.ok() ? ok_status() : Status(guess.error());
  for (const PlanChoice& wanted : choices.usable) {
    const KernelVersion& now = entry.version();
    if (wanted == now.choice) break;
    if (entry.return_to(wanted)) {
      ++counters_.replacements;
      break;
    }
    const std::string plan = to_string(wanted.plan);
    const auto before = std::ranges::find(failed_before, plan, &FailedPlan::plan);
    if (!retry && before != failed_before.end()) {
      failed.push_back(*before);
      continue;
    }
    auto code = code_for(spec, wanted, now);
    if (!code.ok()) {
      ++counters_.failed_replacements;
      failed.push_back(failed_plan(plan, code.error()));
      if (failure.ok()) failure = code.error();
      continue;
    }
    if (entry.replace(make_version(spec, entry.key.shape, wanted, *std::move(code)))) {
      ++counters_.replacements;
      break;
    }
    ++counters_.failed_replacements;
    failed.push_back(failed_plan(plan, {.kind = ErrorKind::kUnsupported,
                                        .id = "workspace-not-promised",
                                        .message = "the kernel was got with less workspace"}));
  }
  entry.set_failed_plans(std::move(failed));
  return failure;
}

// That of `now` where it serves the choice as well.
Result<LoadedCode> Dispatcher::code_for(const AttentionSpec& spec, const PlanChoice& wanted,
                                        const KernelVersion& now) {
  const std::string family = compiler_family(wanted.compiler);
  const bool same_compiler = family.empty() || family == compiler_family(now.code.compiler);
  if (wanted.plan == now.choice.plan && same_compiler) return now.code;
  return workshop_->load(spec, wanted.plan, family);
}

Status Dispatcher::tell_data(KernelEntry& entry, const MaskData& data) {
  return take_data(entry, entry.change_data([&](MaskData& told) { told = data; }));
}

Status Dispatcher::take_data(KernelEntry& entry, bool changed) {
  if (!changed) return ok_status();
  if (!background()) return improve(entry, false);
  enqueue_all();
  return ok_status();
}

Status Dispatcher::tell_tiles(KernelEntry& entry, const MaskData& tensors) {
  return take_data(entry, entry.change_data([&](MaskData& told) {
    const LengthClass lengths = told.lengths;
    told = tensors;
    told.lengths = lengths;
    // A kind's label names its lengths too: one of tensors alone would stand for any.
    if (lengths.is_known()) told.label.clear();
  }));
}

Status Dispatcher::tell_lengths(KernelEntry& entry, const LengthClass& lengths) {
  return take_data(entry, entry.change_data([&](MaskData& told) {
    if (told.lengths == lengths) return;
    told.lengths = lengths;
    told.label.clear();  // of lengths that were tuned on
  }));
}

Status Dispatcher::refresh() {
  ++counters_.refreshes;
  workshop_->refresh_snapshot();
  if (background()) {
    enqueue_all();
    return ok_status();
  }
  Status first = ok_status();
  kernels_.for_each([&](KernelEntry& entry) {
    Status status = improve(entry, true);
    if (first.ok()) first = std::move(status);
  });
  return first;
}

void Dispatcher::enqueue(KernelEntry& entry) {
  if (!has_worker()) return;
  const std::lock_guard lock(mutex_);
  entry.retain();
  queue_.push_back(&entry);
  wake_.notify_one();
}

void Dispatcher::enqueue_all() {
  if (!has_worker()) return;
  const std::lock_guard lock(mutex_);
  sweep_ = true;
  wake_.notify_one();
}

void Dispatcher::work(const std::stop_token& stop) {
  const auto captures = workshop_->device().spare_captures();
  const auto improve_quietly = [&](KernelEntry& entry) {
    if (stop.stop_requested()) return;
    try {
      (void)improve(entry, false);     // counted; the kernel goes on as it is
    } catch (const std::exception&) {  // memory
      ++counters_.failed_replacements;
    }
  };
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [&] { return sweep_ || !queue_.empty(); }) &&
         !stop.stop_requested()) {
    busy_ = true;
    if (!queue_.empty()) {
      KernelEntry* entry = queue_.front();
      queue_.pop_front();
      lock.unlock();
      if (workshop_->refresh_snapshot()) enqueue_all();
      improve_quietly(*entry);
      entry->release();
    } else {
      sweep_ = false;
      lock.unlock();
      kernels_.for_each(improve_quietly);
    }
    lock.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

void Dispatcher::wait_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return !busy_ && !sweep_ && queue_.empty(); });
}

std::size_t Dispatcher::pending() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + (sweep_ ? 1 : 0) + (busy_ ? 1 : 0);
}

}  // namespace attune
