#include "cache/winner.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "cache/data_distance.hpp"
#include "cache/keys.hpp"
#include "cache/latest_builds.hpp"
#include "cache/rank_kinds.hpp"

namespace attune::cache {
namespace {

// What is known of one candidate on one problem.
struct Standing {
  std::string plan;
  std::string compiler;
  std::string newest;                           // measured_at
  std::vector<std::pair<int, double>> medians;  // samples that each is of
  int threads = 0, registers = 0, shared_bytes = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

struct Entry {
  std::string plan;
  std::string compiler;
  std::string newest;
  std::string build;
  double median_us = 0;
  bool is_final = false;
  double before_us = 0;                          // of a finalist, before the final; 0: not known
  std::int64_t shared_bytes = 0, registers = 0;  // of a block
};

// By the medians that took more than half of `most` samples, by all where none did.
void set_times(Entry& entry, const Standing& standing, int most) {
  std::vector<double> before, final;
  for (const auto& [samples, us] : standing.medians)
    (2 * samples > most ? final : before).push_back(us);
  entry.is_final = !final.empty();
  if (entry.is_final && !before.empty()) entry.before_us = median(before);
  entry.median_us = median(std::move(entry.is_final ? final : before));
}

// What the final's times are of those before it: the GPU has grown warm, its clock is another. From
// the candidates that have both.
double drift(const std::vector<Entry>& entries) {
  std::vector<double> ratios;
  for (const Entry& entry : entries) {
    if (entry.before_us > 0) ratios.push_back(entry.median_us / entry.before_us);
  }
  return ratios.empty() ? 1 : median(std::move(ratios));
}

// The winner, then the others by their times.
std::vector<MeasuredPlan> rank(std::vector<Entry> entries) {
  LatestBuilds builds;
  for (const Entry& e : entries) builds.add(e.plan, e.compiler, e.newest, e.build);
  std::erase_if(entries,
                [&](const Entry& e) { return !builds.is_latest(e.plan, e.compiler, e.build); });
  // All as if they had been in the final.
  const double warmer = drift(entries);
  double final_us = INFINITY, best_us = INFINITY;
  for (Entry& entry : entries) {
    if (!entry.is_final) entry.median_us *= warmer;
    if (entry.is_final) final_us = std::min(final_us, entry.median_us);
  }
  const auto competes = [&](const Entry& entry) {
    return entry.is_final || entry.median_us * kBetweenTimes < final_us;
  };
  for (const Entry& entry : entries) {
    if (competes(entry)) best_us = std::min(best_us, entry.median_us);
  }
  const Entry* winner = nullptr;
  const auto order = [](const Entry& e) {
    return std::tie(e.shared_bytes, e.registers, e.median_us, e.plan, e.compiler);
  };
  for (const Entry& entry : entries) {
    if (!competes(entry) || entry.median_us > best_us * (1 + kNoiseFraction)) continue;
    if (winner == nullptr || order(entry) < order(*winner)) winner = &entry;
  }
  std::vector<const Entry*> others;
  for (const Entry& entry : entries) {
    if (&entry != winner) others.push_back(&entry);
  }
  std::ranges::sort(others, {},
                    [](const Entry* e) { return std::tie(e->median_us, e->plan, e->compiler); });
  std::vector<MeasuredPlan> ranking = {{winner->plan, winner->compiler, winner->median_us}};
  for (const Entry* other : others)
    ranking.push_back({other->plan, other->compiler, other->median_us});
  return ranking;
}

void set_plans(std::vector<MeasuredPlan> ranking, Winner& winner) {
  winner.plan = std::move(ranking.front().plan);
  winner.compiler = std::move(ranking.front().compiler);
  winner.median_us = ranking.front().median_us;
  ranking.erase(ranking.begin());
  ranking.resize(std::min(ranking.size(), kRunnersUp));
  winner.runners_up = std::move(ranking);
}

// What was measured on one kind of data.
struct Kind {
  MaskData data;
  std::map<std::string, Standing> builds;
};

// Of one problem on one kind of data.
std::vector<MeasuredPlan> rank(const std::map<std::string, Standing>& builds) {
  int most_samples = 0;
  for (const auto& [build, standing] : builds)
    most_samples = std::max(most_samples, std::ranges::max(standing.medians).first);
  std::vector<Entry> entries;
  for (const auto& [build, standing] : builds) {
    Entry entry{.plan = standing.plan,
                .compiler = standing.compiler,
                .newest = standing.newest,
                .build = build,
                .shared_bytes = standing.shared_bytes,
                .registers = std::int64_t{standing.registers} * standing.threads};
    set_times(entry, standing, most_samples);
    entries.push_back(std::move(entry));
  }
  return rank(std::move(entries));
}

// What stands under kFirstGuessKind, taken out of `kinds`; of several, another model's say, the
// last one.
FirstGuesses take_first_guesses(std::map<std::string, Kind>& kinds) {
  FirstGuesses guesses;
  std::erase_if(kinds, [&](const auto& entry) {
    const auto& [label, kind] = entry;
    if (!label.ends_with(kFirstGuessKind)) return false;
    const Standing* last = nullptr;
    for (const auto& [build, standing] : kind.builds) {
      if (last == nullptr ||
          std::tie(last->newest, last->plan) < std::tie(standing.newest, standing.plan))
        last = &standing;
    }
    guesses[label.substr(0, label.size() - kFirstGuessKind.size())] = last->plan;
    return true;
  });
  return guesses;
}

}  // namespace

bool rejects(const RejectedRow& row, const std::string& device, const ProblemShape& shape) {
  const std::string& reason = row.rejection.reason;
  if (reason == "compile") return true;
  if (hardware_of(row.device) != hardware_of(device)) return false;
  return reason == "miscompute" || reason == "fault" || row.shape == shape;
}

std::vector<ProblemWinner> winners(std::span<const MeasuredRow> rows,
                                   std::span<const RejectedRow> rejections,
                                   const std::string& device) {
  using Problem = std::tuple<std::string, Pass, ProblemShape>;
  std::map<std::pair<std::string, std::string>, std::vector<const RejectedRow*>> rejected;
  for (const RejectedRow& row : rejections) {
    rejected[{row.spec_hash, row.rejection.build_digest}].push_back(&row);
  }
  // Problem -> (same driver, protocol) -> label of the data -> build -> standing.
  using Source = std::pair<bool, std::string>;
  std::map<Problem, std::map<Source, std::map<std::string, Kind>>> problems;
  for (const MeasuredRow& row : rows) {
    if (hardware_of(row.device) != hardware_of(device)) continue;
    const Measurement& m = row.measurement;
    if (!std::isfinite(m.median_us) || m.median_us <= 0) continue;
    const auto against = rejected.find({row.spec_hash, m.build_digest});
    if (against != rejected.end() &&
        std::ranges::any_of(against->second,
                            [&](const RejectedRow* r) { return rejects(*r, device, row.shape); })) {
      continue;
    }
    Kind& kind = problems[{row.spec_hash, row.pass, row.shape}]
                         [{row.device == device, row.protocol}][row.data.label];
    kind.data = row.data;
    Standing& standing = kind.builds[m.build_digest];
    standing.plan = std::max(standing.plan, m.plan);
    standing.compiler = std::max(standing.compiler, m.compiler);
    standing.newest = std::max(standing.newest, m.measured_at);
    standing.medians.emplace_back(m.samples, m.median_us);
    standing.threads = std::max(standing.threads, m.threads);
    standing.registers = std::max(standing.registers, m.registers);
    standing.shared_bytes = std::max(standing.shared_bytes, m.shared_bytes);
  }
  std::vector<ProblemWinner> result;
  for (auto& [problem, sources] : problems) {
    auto& [source, kinds] = *sources.rbegin();  // true sorts last
    const auto& [spec_hash, pass, shape] = problem;
    const FirstGuesses guesses = take_first_guesses(kinds);
    if (kinds.empty()) continue;
    ProblemWinner winner{.spec_hash = spec_hash,
                         .winner = {.measured_shape = shape, .same_driver = source.first},
                         .pass = pass};
    std::vector<DataPlans>& by_data = winner.winner.by_data;
    for (const auto& [label, kind] : kinds) by_data.push_back({kind.data, rank(kind.builds)});
    const std::vector<DataPlans> by_time = by_data;
    for (DataPlans& kind : by_data) rank_by_variations(by_time, guesses, kind);
    const std::string guess = guesses.size() == 1 ? guesses.begin()->second : "";
    set_plans(by_data.size() == 1 ? by_data.front().plans : least_loss(by_data, guess),
              winner.winner);
    const std::size_t most = by_data.size() == 1 ? kRunnersUp + 1 : kPlansOfKind;
    for (DataPlans& kind : by_data) kind.plans.resize(std::min(kind.plans.size(), most));
    result.push_back(std::move(winner));
  }
  return result;
}

double bucket_distance(const ProblemShape& a, const ProblemShape& b) {
  const auto square_log_ratio = [](double x, double y) {
    const double difference = std::log2(x) - std::log2(y);
    return difference * difference;
  };
  const auto d = [](std::int64_t value) {
    return static_cast<double>(std::max<std::int64_t>(value, 1));
  };
  return square_log_ratio(d(a.q_len), d(b.q_len)) + square_log_ratio(d(a.kv_len), d(b.kv_len)) +
         square_log_ratio(d(a.batch) * d(a.heads), d(b.batch) * d(b.heads)) / 2 +
         square_log_ratio(d(a.heads) / d(a.kv_heads), d(b.heads) / d(b.kv_heads)) / 4;
}

double launch_distance(const ProblemShape& measured, std::span<const DataPlans> by_data,
                       const ProblemShape& shape, const MaskData& data) {
  // A shape that is not the launch's: its plans were not raced there, so that of two problems that
  // differ as little the very shape answers.
  constexpr double kOtherShape = 0.25;
  const double by_shape = bucket_distance(measured, shape);
  if (!data.is_known()) return by_shape;
  double least = INFINITY;
  for (const DataPlans& kind : by_data) {
    const double apart = data_distance(kind.data, data);
    least = std::min(least, apart * apart);
  }
  return by_shape + least + (measured == shape ? 0 : kOtherShape);
}

const ProblemWinner* nearest(std::span<const ProblemWinner> candidates, const ProblemShape& shape,
                             const MaskData& data) {
  const ProblemWinner* best = nullptr;
  double best_distance = 0;
  for (const ProblemWinner& candidate : candidates) {
    const Winner& winner = candidate.winner;
    const double distance = launch_distance(winner.measured_shape, winner.by_data, shape, data);
    if (best == nullptr || distance < best_distance ||
        (distance == best_distance &&
         candidate.winner.measured_shape < best->winner.measured_shape)) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace attune::cache

namespace attune {

Winner on_data(Winner winner, const MaskData& data) {
  const auto labelled = std::ranges::find_if(
      winner.by_data, [&](const DataPlans& kind) { return kind.data.label == data.label; });
  std::vector<DataPlans> nearest;
  if (!data.label.empty() && labelled != winner.by_data.end()) {
    nearest.push_back(*labelled);
  } else if (data.is_known()) {
    double least = INFINITY;
    for (const DataPlans& kind : winner.by_data) {
      if (!kind.data.is_known()) continue;
      const double apart = cache::data_distance(kind.data, data);
      if (apart < least) nearest.clear();
      if (apart <= least) nearest.push_back(kind);
      least = std::min(apart, least);
    }
  }
  if (nearest.empty()) return winner;
  // Of several that cannot be told apart, as lengths of one class are, what is good on all.
  cache::set_plans(nearest.size() == 1 ? nearest.front().plans : cache::least_loss(nearest),
                   winner);
  return winner;
}

}  // namespace attune
