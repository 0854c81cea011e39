#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "generator/plan/any_pages.hpp"
#include "generator/spec/residues.hpp"
#include "runtime/engine/engine.hpp"

namespace attune {
namespace {

// A bucket's plans may all be wrong for another shape: their query tiles leave its last one nearly
// empty, or its items come out uneven. Where the cost model expects them to need so many times what
// its own first guess needs, that goes before them; of fewer plans one cannot tell how it errs.
// docs/lab/search.md, "The constants", has the measurements that chose this.
constexpr double kGuessGoesFirst = 1.05;
constexpr std::size_t kPlansThatTell = 4;

// The model errs by more than a percent when it carries a time from one shape to another: the plan
// that won at the bucket gives way only to one that is expected to gain so much.
constexpr double kWinnerStays = 1.02;

// What was measured of a bucket's plan, carried to the asked shape.
struct Carried {
  double us = 0;
  double rank_us = 0;   // what it is compared by
  double of_model = 0;  // measured at the bucket over what the model says there
  PlanChoice choice;
};

// The guess where it goes first, timed as the model errs on the bucket's plans.
std::optional<PlanChoice> better_guess(const AttentionSpec& spec, Pass pass,
                                       const ProblemShape& shape, const DeviceFacts& facts,
                                       std::span<const Carried> carried) {
  if (carried.size() < kPlansThatTell) return std::nullopt;
  const auto guess = default_plan(spec, shape, facts, pass);
  if (!guess.ok()) return std::nullopt;
  const auto is_guess = [&](const Carried& one) { return one.choice.plan == *guess; };
  if (std::ranges::any_of(carried, is_guess)) return std::nullopt;  // it stands where it belongs
  double log_sum = 0;
  for (const Carried& one : carried) log_sum += std::log(one.of_model);
  const double us =
      cost_us(spec, *guess, shape, facts) * std::exp(log_sum / static_cast<double>(carried.size()));
  if (us * kGuessGoesFirst >= carried.front().us) return std::nullopt;
  return PlanChoice{.plan = *guess};
}

}  // namespace

Result<KernelPlan> usable_plan(const AttentionSpec& spec, Pass pass, const std::string& text,
                               const DeviceFacts& facts) {
  ATT_TRY(const KernelPlan plan, parse_plan(text));
  if (plan.pass != pass) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "plan-of-another-pass",
                 .message = fmt::format("`{}` is no plan of the {} pass", text, to_string(pass))};
  }
  if (plan.target != facts.target) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "plan-of-another-target",
                 .message = fmt::format("`{}` is no plan of {}", text, to_string(facts.target))};
  }
  ATT_CHECK(check_plan(spec, plan, facts));
  return plan;
}

FailedPlan failed_plan(std::string plan, const Error& error) {
  return {.plan = std::move(plan), .reason = fmt::format("{} [{}]", error.message, error.id)};
}

MeasuredChoices measured_choices(const AttentionSpec& spec, Pass pass, const ProblemShape& shape,
                                 const DeviceFacts& facts, const Winner& winner,
                                 const std::string& file) {
  MeasuredChoices choices;
  const PlanSource source =
      winner.measured_shape == shape ? PlanSource::kMeasured : PlanSource::kNearestBucket;
  std::vector<Carried> by_time;
  const auto add = [&](const MeasuredPlan& one, bool won) {
    const auto plan = usable_plan(spec, pass, one.plan, facts);
    if (!plan.ok()) {
      choices.unusable.push_back(failed_plan(one.plan, plan.error()));
      return;
    }
    if (!has_residues(shape, plan->residues)) return;  // of another shape
    const KernelPlan chosen = plan_for_boxes(spec, *plan, facts);
    // Compilers may round in other places: of a batch-invariant spec the target's own makes them
    // all.
    const std::string compiler = spec.batch_invariant ? "" : one.compiler;
    Carried carried{.us = one.median_us,
                    .choice = PlanChoice{chosen, source, compiler, file, winner.measured_shape}};
    if (source == PlanSource::kNearestBucket) {
      carried.of_model = one.median_us / cost_us(spec, *plan, winner.measured_shape, facts);
      carried.us = carried.of_model * cost_us(spec, *plan, shape, facts);
      carried.rank_us = won ? carried.us : carried.us * kWinnerStays;
    }
    by_time.push_back(std::move(carried));
  };
  add({winner.plan, winner.compiler, winner.median_us}, true);
  for (const MeasuredPlan& next : winner.runners_up) add(next, false);
  if (source == PlanSource::kNearestBucket) {
    std::ranges::stable_sort(by_time, {}, &Carried::rank_us);
    if (auto guess = better_guess(spec, pass, shape, facts, by_time))
      choices.usable.push_back(*guess);
  }
  for (Carried& carried : by_time) choices.usable.push_back(std::move(carried.choice));
  return choices;
}

Result<PlanChoice> choose_plan(const AttentionSpec& spec, const ProblemShape& shape,
                               const Device& device, const Store* store, Pass pass) {
  if (store != nullptr) {
    const auto winner = store->winner({.spec_hash = spec_hash(spec),
                                       .device = device.identity(),
                                       .shape = shape,
                                       .protocol = std::string(kMeasurementProtocol),
                                       .pass = pass,
                                       .spec_text = canonical_text(spec),
                                       .data = said_data(spec, shape)});
    if (winner.ok() && winner->has_value()) {
      MeasuredChoices choices =
          measured_choices(spec, pass, shape, device.facts(), **winner, store->path());
      if (!choices.usable.empty()) {
        PlanChoice& first = choices.usable.front();
        first.plan = plan_for_pages(spec, spec.page_size, first.plan, device.facts());
        return std::move(first);
      }
    }
  }
  ATT_TRY(const KernelPlan plan, default_plan(spec, shape, device.facts(), pass));
  return PlanChoice{.plan = plan_for_pages(spec, spec.page_size, plan, device.facts())};
}

}  // namespace attune
