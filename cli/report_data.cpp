#include "cli/report_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "cache/winner.hpp"
#include "cli/problem_values.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::cli {
namespace {

using Id = std::tuple<std::string, std::string, Pass, ProblemShape>;  // hash, device, pass, shape

// Of several measurements of one compiler's build of a plan the one with most samples, then the
// latest.
bool better(const Measurement& a, const Measurement& b) {
  return std::tie(a.samples, a.measured_at) > std::tie(b.samples, b.measured_at);
}

void describe_known(const AttentionSpec& spec, const DeviceFacts& facts, ReportProblem& problem) {
  const auto values = draw_values(spec, problem.shape, kTimedSeed);
  if (!values.ok()) return;  // measured by a larger machine than this one
  problem.is_known = true;
  problem.facts = facts;
  const Work work = work_of(problem.pass, spec, problem.shape, *values);
  problem.flops = work.flops;
  problem.bytes = work.bytes;
  problem.roofline_us = roofline_us(work, facts_of_dtype(spec, facts));
  for (ReportCandidate& candidate : problem.candidates) {
    candidate.predicted_us = cost_us(spec, candidate.plan, problem.shape, facts);
  }
  const auto guess =
      std::ranges::min_element(problem.candidates, {}, &ReportCandidate::predicted_us);
  problem.first_guess_us = guess->us;
}

// Of the device itself, else of a published part of its target. CPUs differ too much for that.
std::optional<DeviceFacts> facts_of(const ReportProblem& problem,
                                    const ReportKnowledge& knowledge) {
  if (problem.candidates.empty()) return std::nullopt;
  const auto here = knowledge.devices.find(problem.device);
  if (here != knowledge.devices.end()) return here->second;
  const Target target = problem.candidates.front().plan.target;
  if (target == Target::kCpu) return std::nullopt;
  return device_facts(target);
}

// What the cache answers for each problem.
std::map<Id, Winner> winners_of(const CacheContents& contents) {
  std::vector<cache::MeasuredRow> measured;
  std::vector<cache::RejectedRow> rejected;
  std::set<std::string> devices;
  for (const StoredMeasurement& row : contents.measurements) {
    measured.push_back({row.key.spec_hash, row.key.device, row.key.protocol, row.key.shape,
                        row.measurement, row.key.pass});
    devices.insert(row.key.device);
  }
  for (const StoredRejection& row : contents.rejections)
    rejected.push_back({row.spec_hash, row.device, row.shape, row.rejection, row.pass});
  std::map<Id, Winner> found;
  for (const std::string& device : devices) {
    for (ProblemWinner& winner : cache::winners(measured, rejected, device)) {
      const Id id{winner.spec_hash, device, winner.pass, winner.winner.measured_shape};
      found[id] = std::move(winner.winner);
    }
  }
  return found;
}

// The winner to the front, and times as the cache counts them, which a search took at different
// times: the GPU of its final was warmer than that of the races before it.
void rank(std::vector<ReportCandidate>& candidates, const Winner* winner) {
  const auto find = [&](const std::string& plan, const std::string& compiler) {
    return std::ranges::find_if(candidates, [&](const ReportCandidate& one) {
      return one.text == plan && one.compiler == compiler;
    });
  };
  if (winner != nullptr) {
    for (const MeasuredPlan& next : winner->runners_up) {
      if (const auto at = find(next.plan, next.compiler); at != candidates.end())
        at->us = next.median_us;
    }
  }
  std::ranges::stable_sort(candidates, {}, &ReportCandidate::us);
  const auto at = winner != nullptr ? find(winner->plan, winner->compiler) : candidates.end();
  if (at == candidates.end()) return;
  at->us = winner->median_us;
  std::rotate(candidates.begin(), at, at + 1);
}

}  // namespace

double ReportProblem::regret() const {
  if (first_guess_us <= 0 || candidates.empty()) return -1;
  return std::max(0.0, first_guess_us / candidates.front().us - 1);
}

Report collect_report(std::string source, const CacheContents& contents,
                      const ReportKnowledge& knowledge) {
  using Build = std::pair<std::string, std::string>;  // plan, compiler family
  std::map<Id, std::map<Build, const Measurement*>> measured;
  std::map<Id, std::vector<ReportRejection>> rejected;
  for (const StoredMeasurement& row : contents.measurements) {
    const Measurement*& kept =
        measured[{row.key.spec_hash, row.key.device, row.key.pass, row.key.shape}]
                [{row.measurement.plan, compiler_family(row.measurement.compiler)}];
    if (kept == nullptr || better(row.measurement, *kept)) kept = &row.measurement;
  }
  for (const StoredRejection& row : contents.rejections) {
    const Id id{row.spec_hash, row.device, row.pass, row.shape};
    measured.try_emplace(id);
    rejected[id].push_back({row.rejection.plan, row.rejection.reason, row.rejection.detail});
  }

  const std::map<Id, Winner> launched = winners_of(contents);
  Report report{.source = std::move(source), .problems = {}};
  for (const auto& [id, by_build] : measured) {
    const auto& [hash, device, pass, shape] = id;
    const auto spec = knowledge.specs.find(hash);
    ReportProblem problem{
        .name = spec != knowledge.specs.end() ? spec->second.name : hash.substr(0, 8),
        .device = device,
        .shape = shape,
        .pass = pass,
        .rejections = rejected[id]};
    for (const auto& [build, measurement] : by_build) {
      // A plan of another version of Attune has no place on the axes.
      const auto plan = parse_plan(measurement->plan);
      if (!plan.ok()) continue;
      const auto [tile_q, tile_kv] = tile_shape(*plan);
      problem.candidates.push_back({.plan = *plan,
                                    .text = measurement->plan,
                                    .compiler = measurement->compiler,
                                    .us = measurement->median_us,
                                    .spread_us = measurement->spread_us,
                                    .samples = measurement->samples,
                                    .registers = measurement->registers,
                                    .shared_bytes = measurement->shared_bytes,
                                    .tile_q = tile_q,
                                    .tile_kv = tile_kv});
      if (problem.first.empty() || measurement->measured_at < problem.first)
        problem.first = measurement->measured_at;
      problem.last = std::max(problem.last, measurement->measured_at);
    }
    const auto winner = launched.find(id);
    rank(problem.candidates, winner != launched.end() ? &winner->second : nullptr);
    if (!problem.candidates.empty()) {
      const ReportCandidate& best = problem.candidates.front();
      problem.conditions = by_build.at({best.text, compiler_family(best.compiler)})->conditions;
    }
    const auto facts = facts_of(problem, knowledge);
    if (pass != Pass::kForward) problem.name += fmt::format(", {}", to_string(pass));
    if (spec != knowledge.specs.end() && facts) describe_known(spec->second.spec, *facts, problem);
    report.problems.push_back(std::move(problem));
  }
  std::ranges::stable_sort(report.problems, {}, [](const ReportProblem& problem) {
    return std::tie(problem.name, problem.device, problem.shape);
  });
  return report;
}

}  // namespace attune::cli
