#include "runtime/engine/dispatcher.hpp"

#include <algorithm>
#include <exception>

namespace attune {
namespace {

// The cost model's best plan of the family that takes any strides.
std::optional<KernelPlan> fallback_plan(const AttentionSpec& spec, const KernelPlan& plan,
                                        const ProblemShape& shape, const DeviceFacts& facts) {
  if (launch_recipe(spec, plan).tensor_maps.empty()) return std::nullopt;
  const std::vector<KernelPlan> plans = legal_plans(spec, Family::kSm80, facts);
  const auto cost = [&](const KernelPlan& p) { return cost_us(spec, p, shape, facts); };
  const auto best = std::ranges::min_element(plans, {}, cost);
  return best == plans.end() ? std::nullopt : std::optional(*best);
}

}  // namespace

Dispatcher::Dispatcher(std::shared_ptr<Workshop> workshop, bool background)
    : workshop_(std::move(workshop)) {
  if (background) worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

Dispatcher::~Dispatcher() {
  worker_ = {};
  for (KernelEntry* entry : queue_) entry->release();
  kernels_.for_each([](KernelEntry& entry) { entry.release(); });
}

Result<KernelEntry*> Dispatcher::get(const std::shared_ptr<const AttentionSpec>& spec,
                                     const SpecId& id, const ProblemShape& shape) {
  const KernelKey key{id, shape};
  if (KernelEntry* known = kernels_.find(key)) {
    known->count_hit();
    known->retain();
    return known;
  }
  ++counters_.misses;
  if (workshop_->refresh_snapshot()) enqueue_all();
  ATT_TRY(FirstVersion first, first_version(*spec, key));
  auto* made = new KernelEntry(key, workshop_, spec, std::move(first.version));
  if (!first.failed_plan.empty()) made->set_failed_plan(std::move(first.failed_plan));
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

Result<Dispatcher::FirstVersion> Dispatcher::first_version(const AttentionSpec& spec,
                                                           const KernelKey& key) {
  ATT_TRY(const PlanChoice wanted, workshop_->choose(spec, key.spec, key.shape));
  const std::string family = compiler_family(wanted.compiler);
  const auto version = [&](const PlanChoice& choice, LoadedCode code) {
    return FirstVersion{.version = make_version(spec, key.shape, choice, std::move(code))};
  };
  if (background()) {
    auto ready = workshop_->load_ready(spec, wanted.plan, family);
    if (ready.ok() && ready->kernel != nullptr) return version(wanted, *std::move(ready));
    if (auto other = stand_in(spec, key))
      return FirstVersion{.version = std::move(other), .better_is_known = true};
  }
  // Nothing of the spec is there to begin with, and the best plan takes no longer than another.
  auto loaded = workshop_->load(spec, wanted.plan, family);
  if (loaded.ok()) return version(wanted, *std::move(loaded));
  if (loaded.error().kind == ErrorKind::kUnavailable) {  // no compiler: whatever code there is
    if (auto other = stand_in(spec, key)) return FirstVersion{.version = std::move(other)};
  } else if (wanted.source != PlanSource::kCostModel) {
    // Measured with another compiler, or another version: this one's limits are the cost model's.
    const auto guess = default_plan(spec, key.shape, workshop_->device().facts());
    if (guess.ok() && *guess != wanted.plan) {
      if (auto other = workshop_->load(spec, *guess); other.ok()) {
        FirstVersion first = version({.plan = *guess}, *std::move(other));
        first.failed_plan = to_string(wanted.plan);
        return first;
      }
    }
  }
  return loaded.error();
}

// The fastest, by the cost model, of the plans whose code is there; null: there is none.
std::unique_ptr<const KernelVersion> Dispatcher::stand_in(const AttentionSpec& spec,
                                                          const KernelKey& key) {
  std::vector<KernelPlan> plans = workshop_->ready_plans(spec);
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
  auto fallback = fallback_plan(spec, choice.plan, shape, workshop_->device().facts());
  std::string plan = to_string(choice.plan);
  return std::make_unique<const KernelVersion>(
      KernelVersion{std::move(choice), std::move(plan), std::move(code), std::move(fallback)});
}

// `retry`: also a plan that could not be had before.
Status Dispatcher::improve(KernelEntry& entry, bool retry) {
  const std::lock_guard lock(improve_mutex_);
  const AttentionSpec& spec = entry.spec();
  ATT_TRY(const PlanChoice wanted, workshop_->choose(spec, entry.key.spec, entry.key.shape));
  const KernelVersion& now = entry.version();
  if (wanted == now.choice) return ok_status();
  LoadedCode code = now.code;
  const std::string family = compiler_family(wanted.compiler);
  const bool other_compiler = !family.empty() && family != compiler_family(code.compiler);
  if (wanted.plan != now.choice.plan || other_compiler) {
    if (!retry && entry.failed_plan() == to_string(wanted.plan)) return ok_status();
    auto loaded = workshop_->load(spec, wanted.plan, family);
    if (!loaded.ok()) {
      ++counters_.failed_replacements;
      entry.set_failed_plan(to_string(wanted.plan));
      return loaded.error();
    }
    code = *std::move(loaded);
  }
  if (entry.replace(make_version(spec, entry.key.shape, wanted, std::move(code)))) {
    ++counters_.replacements;
  } else {
    ++counters_.failed_replacements;
  }
  return ok_status();
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
  if (!background()) return;
  const std::lock_guard lock(mutex_);
  entry.retain();
  queue_.push_back(&entry);
  wake_.notify_one();
}

void Dispatcher::enqueue_all() {
  if (!background()) return;
  const std::lock_guard lock(mutex_);
  sweep_ = true;
  wake_.notify_one();
}

void Dispatcher::work(const std::stop_token& stop) {
  workshop_->device().allow_during_capture();
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
