#include "cache/rank_kinds.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace attune::cache {
namespace {

using Build = std::pair<std::string, std::string>;  // plan, compiler

// Medians of one plan, taken at different times, differ by as much.
constexpr double kBeyondNoise = 0.005;
// What a plan must gain on the first guess on average, and what it may lose on the worst kind. On
// fifteen masks with seven kinds of tensors each (docs/lab/search.md), what lost more somewhere,
// whatever it gained elsewhere, was mostly slower on the real ones.
constexpr double kLeastGain = 0.01;
constexpr double kMostLoss = 0.02;

Build build_of(const MeasuredPlan& plan) { return {plan.plan, plan.compiler}; }

double best_us(const std::vector<MeasuredPlan>& ranking) {
  return std::ranges::min_element(ranking, {}, &MeasuredPlan::median_us)->median_us;
}

// On every kind in turn, infinite where it was not measured.
std::vector<double> times_of(const Build& build, std::span<const DataPlans* const> kinds) {
  std::vector<double> times;
  for (const DataPlans* const kind : kinds) {
    const auto at = std::ranges::find_if(
        kind->plans, [&](const MeasuredPlan& plan) { return build_of(plan) == build; });
    times.push_back(at == kind->plans.end() ? INFINITY : at->median_us);
  }
  return times;
}

bool is_everywhere(const std::vector<double>& times) {
  return std::ranges::all_of(times, [](double us) { return std::isfinite(us); });
}

// Of the guess, its fastest build on each kind; empty where none was measured on all.
std::vector<double> times_of_guess(const std::string& guess,
                                   std::span<const DataPlans* const> kinds) {
  std::vector<double> fastest;
  for (const MeasuredPlan& plan : kinds.front()->plans) {
    if (plan.plan != guess) continue;
    const std::vector<double> times = times_of(build_of(plan), kinds);
    if (!is_everywhere(times)) continue;
    if (fastest.empty()) fastest.assign(times.size(), INFINITY);
    for (std::size_t i = 0; i < times.size(); ++i) fastest[i] = std::min(fastest[i], times[i]);
  }
  return fastest;
}

// Beside the guess, of the kinds that both were measured on.
struct Difference {
  double gain = 0;  // on average
  double most_loss = 0;
};
Difference difference(const std::vector<double>& times, const std::vector<double>& guess) {
  Difference difference;
  for (std::size_t i = 0; i < guess.size(); ++i) {
    const double loss = std::log(times[i] / guess[i]);
    difference.gain -= loss / static_cast<double>(guess.size());
    difference.most_loss = std::max(difference.most_loss, loss);
  }
  return difference;
}

bool beats(const std::vector<double>& times, const std::vector<double>& guess) {
  if (guess.empty()) return true;
  const auto [gain, most_loss] = difference(times, guess);
  return gain > kLeastGain && most_loss < kMostLoss;
}

// The kind of `described` and its variations.
std::vector<const DataPlans*> kinds_like(const DataPlans& described,
                                         std::span<const DataPlans> kinds) {
  const std::string mark = described.data.label + std::string(kVariationMark);
  std::vector<const DataPlans*> same{&described};
  for (const DataPlans& kind : kinds) {
    if (kind.data.label.starts_with(mark)) same.push_back(&kind);
  }
  return same;
}

}  // namespace

std::vector<MeasuredPlan> least_loss(std::span<const DataPlans> kinds, const std::string& guess) {
  struct Loss {
    std::size_t kinds = 0;
    double worst = 1;
  };
  std::map<Build, Loss> losses;
  for (const DataPlans& kind : kinds) {
    for (const MeasuredPlan& one : kind.plans) {
      Loss& loss = losses[build_of(one)];
      ++loss.kinds;
      loss.worst = std::max(loss.worst, one.median_us / best_us(kind.plans));
    }
  }
  std::vector<MeasuredPlan> ranking;
  for (const auto& [build, loss] : losses) {
    if (loss.kinds == kinds.size())
      ranking.push_back({build.first, build.second, loss.worst * best_us(kinds.front().plans)});
  }
  if (ranking.empty()) {
    return std::ranges::max_element(kinds, {},
                                    [](const DataPlans& kind) { return kind.plans.size(); })
        ->plans;
  }
  std::ranges::stable_sort(ranking, {}, &MeasuredPlan::median_us);
  const auto guessed = std::ranges::find(ranking, guess, &MeasuredPlan::plan);
  if (guessed != ranking.end()) {
    const auto first = std::ranges::find_if(ranking.begin(), guessed, [&](const auto& plan) {
      return plan.median_us >= guessed->median_us * (1 - kBeyondNoise);
    });
    std::rotate(first, guessed, guessed + 1);
  }
  return ranking;
}

void rank_by_variations(std::span<const DataPlans> kinds, const FirstGuesses& guesses,
                        DataPlans& described) {
  if (described.data.label.empty()) return;
  const std::vector<const DataPlans*> same = kinds_like(described, kinds);
  if (same.size() == 1) return;
  const auto known = guesses.find(described.data.label);
  const std::string guess = known == guesses.end() ? "" : known->second;
  const std::vector<double> guess_us = times_of_guess(guess, same);
  enum Place : std::uint8_t { kFaster, kGuess, kSlower, kNotEverywhere };
  std::map<Build, std::pair<Place, double>> places;  // with what it loses
  for (const MeasuredPlan& one : described.plans) {
    const std::vector<double> times = times_of(build_of(one), same);
    const bool everywhere = is_everywhere(times);
    double loss = 0;
    for (std::size_t i = 0; i < (everywhere ? times.size() : 1); ++i)
      loss += std::log(times[i] / best_us(same[i]->plans));
    const Place place = !everywhere              ? kNotEverywhere
                        : one.plan == guess      ? kGuess
                        : beats(times, guess_us) ? kFaster
                                                 : kSlower;
    places[build_of(one)] = {place, loss};
  }
  std::ranges::stable_sort(described.plans, {},
                           [&](const MeasuredPlan& one) { return places.at(build_of(one)); });
}

std::vector<std::string> may_beat(std::span<const DataPlans> kinds, const std::string& guess) {
  if (kinds.empty()) return {};
  std::vector<const DataPlans*> all;
  for (const DataPlans& kind : kinds) all.push_back(&kind);
  const std::vector<double> guess_us = times_of_guess(guess, all);
  if (guess_us.empty()) return {};
  std::vector<std::pair<double, std::string>> order;
  for (const MeasuredPlan& one : kinds.front().plans) {
    const std::vector<double> times = times_of(build_of(one), all);
    if (one.plan == guess || !is_everywhere(times)) continue;
    const auto [gain, most_loss] = difference(times, guess_us);
    if (gain > 0 && most_loss < kMostLoss) order.emplace_back(-gain, one.plan);
  }
  std::ranges::sort(order);
  std::vector<std::string> plans;
  for (auto& [gain, plan] : order) plans.push_back(std::move(plan));
  return plans;
}

}  // namespace attune::cache
