#include <algorithm>
#include <map>
#include <tuple>

#include "cache/store.hpp"
#include "generator/plan/mask_data.hpp"
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

// Of what was measured under the key, the plans that are nearly the fastest.
std::vector<KernelPlan> fastest(const Store& store, const MeasurementKey& key) {
  constexpr std::size_t kMost = 16;
  constexpr double kWithin = 1.1;
  std::vector<KernelPlan> plans;
  const auto measured = store.measurements(key);
  if (!measured.ok()) return plans;
  std::map<std::string, double> times;  // the last ones
  for (const Measurement& m : *measured) times[m.plan] = m.median_us;
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [plan, us] : times) order.emplace_back(us, plan);
  std::ranges::sort(order);
  for (const auto& [us, text] : order) {
    if (plans.size() == kMost || us > kWithin * order.front().first) break;
    if (const auto plan = parse_plan(text); plan.ok()) plans.push_back(*plan);
  }
  return plans;
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

// The search on what is described; then what was best there, and the first guesses of all, on the
// variations. What loses least on average wins: cache/winner.cpp.
Result<TuneResult> tune_on_variations(const AttentionSpec& spec, const ProblemShape& shape,
                                      const Device& device, const Store& store,
                                      const TuneOptions& options, const TuneOnce& tune_once,
                                      const std::vector<VariedSpec>& varied) {
  ATT_TRY(const TuneResult found, tune_once(spec, options));
  if (found.stopped) return found;
  TuneResult sum = found;
  const MeasurementKey key = key_of(spec, shape, device, options, mask_data(spec, shape));
  TuneOptions of_few = options;
  const auto add_guess = [&](const AttentionSpec& of) {
    if (const auto guess = default_plan(of, shape, device.facts(), options.pass); guess.ok())
      add(*guess, of_few.contenders);
  };
  of_few.contenders = {found.plan};
  add_guess(spec);
  for (const VariedSpec& one : varied) add_guess(one.spec);
  for (const KernelPlan& plan : fastest(store, key)) add(plan, of_few.contenders);
  of_few.max_candidates = static_cast<int>(of_few.contenders.size());
  of_few.force = false;
  const auto measure = [&](const AttentionSpec& of, const TuneOptions& with) -> Status {
    ATT_TRY(TuneResult run, tune_once(of, with));
    count(std::move(run), sum);
    std::tie(sum.plan, sum.compiler, sum.median_us) =
        std::tie(found.plan, found.compiler, found.median_us);
    return ok_status();
  };
  ATT_CHECK(measure(spec, of_few));  // guesses that were not asked for
  of_few.force = options.force;
  for (const VariedSpec& one : varied) {
    if (sum.stopped) return sum;
    of_few.data = one.data;
    ATT_CHECK(measure(one.spec, of_few));
  }
  ATT_CHECK(set_winner(store, key, sum));
  return sum;
}

}  // namespace

Result<TuneResult> tune_on_plausible_data(const AttentionSpec& spec, const ProblemShape& shape,
                                          const Device& device, const Store& store,
                                          const TuneOptions& options, const TuneOnce& tune_once) {
  const std::vector<AttentionSpec> kinds = plausible_specs(spec, shape);
  if (kinds.size() == 1) {
    const std::vector<VariedSpec> varied = varied_specs(spec, shape);
    if (varied.empty() || options.exhaustive) return tune_once(spec, options);
    return tune_on_variations(spec, shape, device, store, options, tune_once, varied);
  }
  TuneResult sum;
  TuneOptions of_kind = options;
  for (const AttentionSpec& kind : kinds) {
    ATT_TRY(TuneResult run, tune_once(kind, options));
    add(run.plan, of_kind.contenders);
    if (const auto guess = default_plan(kind, shape, device.facts(), options.pass); guess.ok())
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
  ATT_CHECK(set_winner(store, key_of(spec, shape, device, options, {}), sum));
  return sum;
}

}  // namespace attune
