#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "bench/regret.hpp"
#include "generator/support/hash.hpp"
#include "tuner/search/search.hpp"

namespace attune::regret {
namespace {

// Candidates that take the time that was recorded for them.
class Recorded final : public Executor {
 public:
  explicit Recorded(const std::map<KernelPlan, double>& times) : times_(times) {}
  Result<std::string> build_digest(const Candidate& candidate) override {
    return hash128_hex(to_string(candidate.plan));
  }
  Result<CompiledFacts> compile(const Candidate& candidate) override {
    return CompiledFacts{.build_digest = hash128_hex(to_string(candidate.plan))};
  }
  Status verify(const Candidate&) override { return ok_status(); }
  Result<double> time_us(const Candidate& candidate) override { return times_.at(candidate.plan); }
  void release(const Candidate&) override {}
  std::string conditions() override { return "{}"; }

 private:
  const std::map<KernelPlan, double>& times_;
};

Result<Json> replay(const Json& line, const std::string& directory) {
  ATT_TRY(const AttentionSpec spec, library_spec(line.at("spec")));
  ATT_TRY(const ProblemShape shape, parse_shape(line.at("shape").get<std::string>()));
  const DeviceFacts facts = device_facts(Target::kSm90a);
  std::map<KernelPlan, double> times;
  std::vector<std::pair<double, KernelPlan>> costed;
  for (const auto& [text, us] : line.at("exhaustive").at("times").items()) {
    const auto plan = parse_plan(text);
    if (!plan.ok()) continue;  // of another version's space
    times[*plan] = us;
    costed.emplace_back(cost_us(spec, *plan, shape, facts), *plan);
  }
  std::ranges::sort(costed);
  SearchProblem problem{.key = {.spec_hash = spec_hash(spec),
                                .device = "recorded / driver 0",
                                .shape = shape,
                                .protocol = "recorded"},
                        .plans = {}};
  double best_us = INFINITY;
  for (const auto& [cost, plan] : costed) {
    problem.plans.push_back(plan);
    best_us = std::min(best_us, times.at(plan));
  }
  const auto time_of = [&](const KernelPlan& plan) { return times.at(plan); };
  Recorded executor(times);
  // Of a large space a part was recorded, but the search's bound is by the whole.
  TuneOptions options{.compile_threads = 1};
  if (const std::size_t legal = line.value("legal", times.size()); legal > times.size())
    options.max_candidates = static_cast<int>(search_bound(legal));
  ATT_TRY(const auto store, open_store(directory + "/replay.db"));
  double ticks = 0;
  ATT_TRY(const TuneResult found, search(
                                      problem, executor, *store, options, [&] { return ++ticks; },
                                      [](const TuneProgress&) { return true; }));
  return Json{{"spec", line.at("spec")},
              {"shape", line.at("shape")},
              {"plans", times.size()},
              {"first", times.at(problem.plans.front()) / best_us},
              {"first_plan", to_string(problem.plans.front())},
              {"rank_of_best", rank_within(1, problem.plans, time_of)},
              {"rank_within_2_percent", rank_within(1.02, problem.plans, time_of)},
              {"search", times.at(found.plan) / best_us},
              {"candidates", found.candidates}};
}

}  // namespace

Status replay_all(const std::string& path) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "attune-regret-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return Error{.id = "temp", .message = directory};
  std::ifstream file(path);
  Status status = ok_status();
  for (std::string text; status.ok() && std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (!line.contains("exhaustive")) continue;
    const auto result = replay(line, directory);
    if (result.ok()) {
      fmt::print("{}\n", result->dump());
    } else {
      status = result.error();
    }
  }
  std::filesystem::remove_all(directory);
  return status;
}

}  // namespace attune::regret
