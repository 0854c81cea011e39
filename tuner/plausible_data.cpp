#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "cache/latest_builds.hpp"
#include "cache/rank_kinds.hpp"
#include "cache/store.hpp"
#include "generator/plan/any_pages.hpp"
#include "generator/plan/mask_data.hpp"
#include "tuner/search/diverse.hpp"
#include "tuner/tuner.hpp"

namespace attune {
namespace {

void add(const KernelPlan& plan, std::vector<KernelPlan>& plans) {
  if (std::ranges::find(plans, plan) == plans.end()) plans.push_back(plan);
}

// The counts of `run` on top of those before; what it found stands.
void count(TuneResult run, TuneResult& sum) {
  run.candidates += sum.candidates;
  run.measured += sum.measured;
  run.rejected += sum.rejected;
  run.from_cache += sum.from_cache;
  run.seconds += sum.seconds;
  if (sum.not_stored) run.not_stored = std::move(sum.not_stored);
  sum = std::move(run);
}

MeasurementKey key_of(const AttentionSpec& spec, const ProblemShape& shape, const Device& device,
                      const TuneOptions& options, const MaskData& data) {
  return {.spec_hash = spec_hash(spec),
          .device = device.identity(),
          .shape = shape,
          .protocol = std::string(kMeasurementProtocol),
          .pass = options.pass,
          .spec_text = canonical_text(spec),
          .data = data};
}

// Of what was measured under the key, what is worth a look on other data.
std::vector<KernelPlan> worth_a_look(const Store& store, const MeasurementKey& key) {
  const auto measured = store.measurements(key);
  if (!measured.ok()) return {};
  cache::LatestBuilds builds;
  for (const Measurement& m : *measured)
    builds.add(m.plan, m.compiler, m.measured_at, m.build_digest);
  // Their first times, of races that have one yardstick: finals are later, on a warmer GPU.
  std::map<std::pair<std::string, std::string>, double> times;
  for (const Measurement& m : *measured) {
    if (builds.is_latest(m.plan, m.compiler, m.build_digest))
      times.try_emplace({m.plan, compiler_family(m.compiler)}, m.median_us);
  }
  std::vector<TimedPlan> order;
  for (const auto& [build, us] : times) {
    if (const auto plan = parse_plan(build.first); plan.ok()) order.push_back({us, *plan});
  }
  std::ranges::stable_sort(order, {}, &TimedPlan::us);
  return diverse_plans(order);
}

// The store's own answer, which is what launches get.
Status set_winner(const Store& store, const MeasurementKey& key, TuneResult& result) {
  const auto winner = store.winner(key);
  if (!winner.ok() || !winner->has_value() || (*winner)->measured_shape != key.shape)
    return ok_status();
  ATT_TRY(result.plan, parse_plan((*winner)->plan));
  result.compiler = (*winner)->compiler;
  // A time that was measured: on the first kind, or on the one that was asked for.
  for (const DataPlans& kind : (*winner)->by_data) {
    if (kind.data.label != key.data.label && !key.data.label.empty()) continue;
    for (const MeasuredPlan& one : kind.plans) {
      if (one.plan == (*winner)->plan && one.compiler == result.compiler)
        result.median_us = one.median_us;
    }
    break;
  }
  return ok_status();
}

// The model's, as pages of the spec's size are read by.
Result<KernelPlan> first_guess(const AttentionSpec& spec, const ProblemShape& shape,
                               const Device& device, Pass pass) {
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device.facts(), pass));
  return plan_for_pages(spec, mask_data(spec, shape).lengths.page_size, plan, device.facts());
}

// What the model guesses without any measurement, told to the store: what takes its place must be
// faster on every kind of data.
void note_first_guess(Store& store, MeasurementKey key, const Result<KernelPlan>& guess,
                      TuneResult& sum) {
  if (!guess.ok()) return;
  const auto measured = store.measurements(key);
  if (!measured.ok()) return;
  const std::string plan = to_string(*guess);
  const auto at = std::ranges::find(*measured, plan, &Measurement::plan);
  if (at == measured->end()) return;
  key.data = {.label = key.data.label + std::string(kFirstGuessKind)};
  const auto noted = store.measurements(key);
  if (noted.ok() && !noted->empty() && noted->back().plan == plan) return;
  Measurement note = *at;
  note.measured_at.clear();
  if (Status stored = store.record(key, note); !stored.ok() && !sum.not_stored)
    sum.not_stored = stored.error();
}

// Of one description.
class Variations {
 public:
  Variations(const AttentionSpec& spec, const ProblemShape& shape, const Device& device,
             Store& store, const TuneOptions& options, const TuneOnce& tune_once)
      : spec_(spec),
        shape_(shape),
        device_(device),
        store_(store),
        options_(options),
        tune_once_(tune_once),
        key_(key_of(spec, shape, device, options, mask_data(spec, shape))) {}

  // The search on what is described; then what was best there, of every kind of plan, and the first
  // guesses of all, on the variations; then what was the fastest on one of these, or gained on all,
  // beside the first guess on what is described; then what may be faster than that guess, and the
  // guess, on other draws. What loses least on average wins: cache/rank_kinds.cpp.
  Result<TuneResult> tune(const std::vector<VariedSpec>& varied) {
    ATT_TRY(found_, tune_once_(spec_, options_));
    sum_ = found_;
    if (sum_.stopped) return sum_;
    const std::vector<KernelPlan> few = first_choice(varied);
    ATT_CHECK(measure(spec_, few, std::nullopt, false));  // guesses that were not asked for
    ATT_CHECK(measure_all(varied, few));
    if (sum_.stopped) return sum_;
    const auto guess = guess_of(spec_);
    // What left the search's races early has times of few rounds on another GPU than the final's,
    // which tell less than a rule asks.
    if (const auto good = good_on_variations(guess); !good.empty())
      ATT_CHECK(measure(spec_, good, std::nullopt, true));
    if (sum_.stopped) return sum_;
    note_first_guess(store_, key_, guess, sum_);
    if (const auto plans = promising(guess); !plans.empty())
      ATT_CHECK(measure_all(confirming_specs(spec_, shape_), plans));
    if (!sum_.stopped) ATT_CHECK(set_winner(store_, key_, sum_));
    return sum_;
  }

 private:
  Result<KernelPlan> guess_of(const AttentionSpec& spec) const {
    return first_guess(spec, shape_, device_, options_.pass);
  }

  std::vector<KernelPlan> first_choice(const std::vector<VariedSpec>& varied) const {
    std::vector<KernelPlan> plans = {found_.plan};
    const auto add_guess = [&](const AttentionSpec& of) {
      if (const auto guess = guess_of(of); guess.ok()) add(*guess, plans);
    };
    add_guess(spec_);
    for (const VariedSpec& one : varied) add_guess(one.spec);
    for (const KernelPlan& plan : worth_a_look(store_, key_)) add(plan, plans);
    return plans;
  }

  // The variations, behind the description where it is wanted.
  std::vector<DataPlans> kinds(bool with_description) const {
    std::vector<DataPlans> kinds;
    const auto winner = store_.winner(key_);
    if (!winner.ok() || !winner->has_value()) return kinds;
    const std::string mark = key_.data.label + std::string(kVariationMark);
    for (const DataPlans& kind : (*winner)->by_data) {
      if (kind.data.label.starts_with(mark)) kinds.push_back(kind);
      if (kind.data.label == key_.data.label && with_description) kinds.insert(kinds.begin(), kind);
    }
    return kinds;
  }

  // What is the fastest on a variation, or gains on the guess on all of them, and the guess; empty
  // where that is nothing else.
  std::vector<KernelPlan> good_on_variations(const Result<KernelPlan>& guess) const {
    std::vector<KernelPlan> plans;
    const std::vector<DataPlans> variations = kinds(false);
    if (!guess.ok()) return plans;
    for (const DataPlans& kind : variations) {
      const auto plan = parse_plan(kind.plans.front().plan);
      if (plan.ok() && *plan != *guess) add(*plan, plans);
    }
    for (const KernelPlan& plan : most_promising(variations, *guess)) add(plan, plans);
    if (!plans.empty()) plans.push_back(*guess);
    return plans;
  }

  // What may take the guess's place, and the guess.
  std::vector<KernelPlan> promising(const Result<KernelPlan>& guess) const {
    if (!guess.ok()) return {};
    std::vector<KernelPlan> plans = most_promising(kinds(true), *guess);
    if (!plans.empty()) plans.push_back(*guess);
    return plans;
  }
  static std::vector<KernelPlan> most_promising(const std::vector<DataPlans>& kinds,
                                                const KernelPlan& guess) {
    constexpr std::size_t kMost = 3;
    std::vector<KernelPlan> plans;
    for (const std::string& text : cache::may_beat(kinds, to_string(guess))) {
      const auto plan = parse_plan(text);
      if (plan.ok() && plans.size() < kMost) add(*plan, plans);
    }
    return plans;
  }

  Status measure(const AttentionSpec& of, const std::vector<KernelPlan>& plans,
                 std::optional<MaskData> data, bool force) {
    TuneOptions options = options_;
    options.contenders = plans;
    options.max_candidates = static_cast<int>(plans.size());
    options.to_the_end = data.has_value() || force;
    options.data = std::move(data);
    options.force = force;
    ATT_TRY(TuneResult run, tune_once_(of, options));
    count(std::move(run), sum_);
    std::tie(sum_.plan, sum_.compiler, sum_.median_us) =
        std::tie(found_.plan, found_.compiler, found_.median_us);
    return ok_status();
  }
  Status measure_all(const std::vector<VariedSpec>& specs, const std::vector<KernelPlan>& plans) {
    for (const VariedSpec& one : specs) {
      if (sum_.stopped) break;
      ATT_CHECK(measure(one.spec, plans, one.data, options_.force));
    }
    return ok_status();
  }

  const AttentionSpec& spec_;
  const ProblemShape& shape_;
  const Device& device_;
  Store& store_;
  const TuneOptions& options_;
  const TuneOnce& tune_once_;
  const MeasurementKey key_;
  TuneResult found_, sum_;
};

}  // namespace

Result<TuneResult> tune_on_plausible_data(const AttentionSpec& spec, const ProblemShape& shape,
                                          const Device& device, Store& store,
                                          const TuneOptions& options, const TuneOnce& tune_once) {
  const std::vector<AttentionSpec> kinds = plausible_specs(spec, shape);
  if (kinds.size() == 1) {
    const std::vector<VariedSpec> varied = varied_specs(spec, shape);
    if (varied.empty() || options.exhaustive) return tune_once(spec, options);
    return Variations(spec, shape, device, store, options, tune_once).tune(varied);
  }
  TuneResult sum;
  TuneOptions of_kind = options;
  for (const AttentionSpec& kind : kinds) {
    ATT_TRY(TuneResult run, tune_once(kind, options));
    add(run.plan, of_kind.contenders);
    if (const auto guess = first_guess(kind, shape, device, options.pass); guess.ok())
      add(*guess, of_kind.contenders);
    count(std::move(run), sum);
    if (sum.stopped) return sum;
  }
  of_kind.force = false;
  for (const AttentionSpec& kind : kinds) {
    ATT_TRY(TuneResult run, tune_once(kind, of_kind));
    count(std::move(run), sum);
    if (sum.stopped) return sum;
  }
  const MeasurementKey key = key_of(spec, shape, device, options, {});
  note_first_guess(store, key, first_guess(spec, shape, device, options.pass), sum);
  ATT_CHECK(set_winner(store, key, sum));
  return sum;
}

}  // namespace attune
