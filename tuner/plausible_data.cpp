#include <algorithm>

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

}  // namespace

Result<TuneResult> tune_on_plausible_data(const AttentionSpec& spec, const ProblemShape& shape,
                                          const Device& device, const Store& store,
                                          const TuneOptions& options, const TuneOnce& tune_once) {
  const std::vector<AttentionSpec> kinds = plausible_specs(spec, shape);
  if (kinds.size() == 1) return tune_once(spec, options);
  TuneResult sum;
  TuneOptions of_kind = options;
  of_kind.guess_margin = 0;  // the worst of the kinds decides
  const TuneOptions alone = of_kind;
  for (const AttentionSpec& kind : kinds) {
    ATT_TRY(TuneResult run, tune_once(kind, alone));
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
  const auto winner = store.winner({.spec_hash = spec_hash(spec),
                                    .device = device.identity(),
                                    .shape = shape,
                                    .protocol = std::string(kMeasurementProtocol),
                                    .pass = options.pass,
                                    .spec_text = canonical_text(spec)});
  if (winner.ok() && winner->has_value() && (*winner)->measured_shape == shape) {
    ATT_TRY(sum.plan, parse_plan((*winner)->plan));
    sum.compiler = (*winner)->compiler;
    // A time that was measured: on what is drawn when nobody says.
    for (const MeasuredPlan& one : (*winner)->by_data.front().plans) {
      if (one.plan == (*winner)->plan && one.compiler == sum.compiler)
        sum.median_us = one.median_us;
    }
  }
  return sum;
}

}  // namespace attune
