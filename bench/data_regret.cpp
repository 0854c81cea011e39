// How far from the best plan a launch runs whose mask is decided by tensors that no tuner had seen.
//
//     data_regret [--device D] [--budget S] [--plans N] [--rounds N] DIRECTORY [MASK...]
//     data_regret --check DIRECTORY [MASK...]
//
// Of each DIRECTORY/MASK.yaml the tuner searches on what the spec says of its tensors, or on
// several plausible kinds where it says nothing, at the first of the spec's shapes. What counts is
// then measured on the real ones, DIRECTORY/MASK/NAME.npy: every legal plan, or as many as the
// budget allows, those that the cost model puts first and others from all over its order in turn.
// The plan found, the cost model's first guesses without the real tensors and with them, what a
// search on them finds and the fastest three of all that was measured on them then run against each
// other in interleaved rounds. --check: only what a mask leaves and what the model guesses for an
// H100; no device. One JSON object a line on stdout, progress on stderr; bench/data_regret.py makes
// the tensors and the table.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <vector>

#include "bench/data_command.hpp"
#include "bench/data_problem.hpp"
#include "bench/duel.hpp"
#include "tuner/search/search.hpp"
#include "tuner/tuner.hpp"

namespace attune {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFastest = 3;  // of the yardstick: a lucky median may be among the first
constexpr double kDuelSeconds = 2;   // kept back from a mask's share of the budget

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void say(const Json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

Result<Json> checked(const std::string& name, const Problem& problem) {
  const DeviceFacts facts = device_facts(Target::kSm90a);
  const MaskData said = mask_data(problem.said, problem.shape);
  ATT_TRY(const std::vector<KernelPlan> legal, plans_by_cost(problem.real, problem.shape, facts));
  ATT_TRY(const KernelPlan first, default_plan(problem.said, problem.shape, facts));
  Json line = facts_of(name, problem);
  line["said live"] = live_share(problem.said, problem.shape);
  line["said live tiles"] = said.live;
  line["said full tiles"] = said.full;
  line["legal"] = legal.size();
  line["first"] = to_string(first);
  line["first with tensors"] = to_string(legal.front());
  return line;
}

// The model's first guesses and plans from all over its order, in turn: wherever one stops, both
// were looked at. Ranks that are the golden section apart fill an order evenly.
std::vector<KernelPlan> yardstick(const std::vector<KernelPlan>& legal, std::size_t most) {
  std::vector<KernelPlan> plans;
  std::set<std::size_t> taken;
  for (std::size_t i = 0; i < legal.size(); ++i) {
    const double turns = static_cast<double>(i + 1) / std::numbers::phi;
    const auto anywhere =
        static_cast<std::size_t>((turns - std::floor(turns)) * static_cast<double>(legal.size()));
    for (const std::size_t rank : {i, anywhere}) {
      if (plans.size() < most && taken.insert(rank).second) plans.push_back(legal[rank]);
    }
  }
  return plans;
}

// How far apart a plan's medians of the even and of the odd rounds are, of the plan where they are
// farthest: differences below that mean nothing.
double noise_of(const std::map<KernelPlan, std::vector<double>>& samples) {
  double noise = 0;
  for (const auto& [plan, times] : samples) {
    std::vector<double> halves[2];
    for (std::size_t i = 0; i < times.size(); ++i) halves[i % 2].push_back(times[i]);
    if (halves[1].empty()) continue;
    noise =
        std::max(noise, std::abs(spread_of(halves[0]).median / spread_of(halves[1]).median - 1));
  }
  return noise;
}

class Bench {
 public:
  Bench(Device& device, Compiler& compiler, const DataCommand& options)
      : device_(device), compilers_{&compiler}, options_(options) {}

  // `share_s`: what the mask may take; its searches run to their end.
  Result<Json> measure(const std::string& name, double share_s) {
    const double began = now();
    name_ = name;
    ATT_TRY(problem_, open_problem(options_.directory, name));
    const auto& [said, real, shape] = problem_;
    ATT_TRY(store_, open_store(options_.directory + "/" + name + ".db"));
    ATT_TRY(const TuneResult found, tune_as_said());
    tell(fmt::format("tuned in {:.0f} s", found.seconds));
    ATT_TRY(const TuneResult on_them, tune_on(real, {}));
    tell(fmt::format("tuned on the real tensors in {:.0f} s", on_them.seconds));
    ATT_TRY(const KernelPlan first, default_plan(said, shape, device_.facts()));
    ATT_TRY(const std::vector<KernelPlan> legal, plans_by_cost(real, shape, device_.facts()));
    LocalExecutor executor(real, shape, device_, compilers_, store_.get(), 3);
    ATT_CHECK(measure_yardstick(yardstick(legal, options_.plans), executor,
                                began + share_s - kDuelSeconds));
    ATT_TRY(const auto times, times_on_real());
    NamedPlans named = {{"first", first},
                        {"first with tensors", legal.front()},
                        {"tuned", found.plan},
                        {"tuned on them", on_them.plan}};
    ATT_CHECK(add_fastest(times, named));
    ATT_TRY(const auto samples, interleaved(executor, named, options_.rounds));
    Json line = facts_of(name, problem_);
    line["legal"] = legal.size();
    line["measured"] = times.size();
    line["search seconds"] = found.seconds;
    line["seconds"] = now() - began;
    line["noise"] = noise_of(samples);
    for (const auto& [role, plan] : named) line["plans"][role] = to_string(plan);
    line["us"] = medians_of(samples, named);
    line["chosen by"] = times_as_said(named);
    return line;
  }

 private:
  void tell(const std::string& what) const { fmt::print(stderr, "{}: {}\n", name_, what); }

  Result<TuneResult> tune_on(const AttentionSpec& spec, const TuneOptions& options) {
    return tune(spec, problem_.shape, device_, compilers_, *store_, options,
                [](const TuneProgress&) { return true; });
  }

  // Before anything is known of the real tensors: its cache is empty.
  Result<TuneResult> tune_as_said() {
    const double began = now();
    ATT_TRY(TuneResult found,
            tune_on_plausible_data(problem_.said, problem_.shape, device_, *store_, {},
                                   [this](const AttentionSpec& spec, const TuneOptions& options) {
                                     return tune_on(spec, options);
                                   }));
    found.seconds = now() - began;
    return found;
  }

  // What tune() stores its times under.
  MeasurementKey key_of(const AttentionSpec& spec) const {
    return {.spec_hash = spec_hash(spec),
            .device = device_.identity(),
            .shape = problem_.shape,
            .protocol = std::string(kMeasurementProtocol),
            .spec_text = canonical_text(spec),
            .data = mask_data(spec, problem_.shape)};
  }
  MeasurementKey key() const { return key_of(problem_.real); }

  // What the choice went by: on each kind of data that was drawn, the last times of named plans.
  Json times_as_said(const NamedPlans& named) const {
    Json kinds = Json::object();
    MeasurementKey at = key_of(problem_.said);
    const auto winner = store_->winner(at);
    if (!winner.ok() || !winner->has_value()) return kinds;
    for (const DataPlans& kind : (*winner)->by_data) {
      at.data = kind.data;
      const auto rows = store_->measurements(at);
      if (!rows.ok()) continue;
      for (const auto& [role, plan] : named) {
        for (const Measurement& row : *rows) {
          if (row.plan == to_string(plan)) kinds[kind.data.label][role] = row.median_us;
        }
      }
    }
    return kinds;
  }

  Status measure_yardstick(std::vector<KernelPlan> plans, LocalExecutor& executor,
                           double deadline) {
    if (now() >= deadline) return ok_status();
    const std::size_t asked = plans.size();
    const SearchProblem problem{.key = key(),
                                .plans = std::move(plans),
                                .compile_while_measuring = device_.facts().target != Target::kCpu};
    const auto found = search(problem, executor, *store_, {.exhaustive = true}, now,
                              [deadline](const TuneProgress&) { return now() < deadline; });
    if (!found.ok() && found.error().id != "tune-stopped") return found.error();
    if (found.ok()) {
      tell(fmt::format("{} of {} plans measured", found->measured + found->from_cache, asked));
    }
    return ok_status();
  }

  // Of every plan, its last median on the real tensors.
  Result<std::map<std::string, double>> times_on_real() const {
    ATT_TRY(const std::vector<Measurement> rows, store_->measurements(key()));
    std::map<std::string, double> times;
    for (const Measurement& row : rows) times[row.plan] = row.median_us;
    return times;
  }

  static Status add_fastest(const std::map<std::string, double>& times, NamedPlans& named) {
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [plan, us] : times) order.emplace_back(us, plan);
    std::ranges::sort(order);
    for (std::size_t i = 0; i < std::min(kFastest, order.size()); ++i) {
      ATT_TRY(const KernelPlan plan, parse_plan(order[i].second));
      named.emplace_back(fmt::format("measured {}", i + 1), plan);
    }
    return ok_status();
  }

  Device& device_;
  const std::vector<Compiler*> compilers_;
  const DataCommand& options_;
  std::string name_;
  Problem problem_;
  std::unique_ptr<Store> store_;
};

Status check(const DataCommand& options) {
  for (const std::string& mask : options.masks) {
    ATT_TRY(const Problem problem, open_problem(options.directory, mask));
    ATT_TRY(const Json line, checked(mask, problem));
    say(line);
  }
  return ok_status();
}

Status run(const DataCommand& options) {
  const double began = now();
  ATT_TRY(const std::unique_ptr<Device> device, open_device(options.device));
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_compiler(device->facts().target));
  say({{"device", device->identity()}, {"compiler", compiler->identity()}});
  Bench bench(*device, *compiler, options);
  Status last = ok_status();
  for (std::size_t i = 0; i < options.masks.size(); ++i) {
    const double left_s = options.budget_s - (now() - began);
    if (left_s < 0) {
      fmt::print(stderr, "no time is left for {}\n", options.masks[i]);
      continue;
    }
    const auto masks_left = static_cast<double>(options.masks.size() - i);
    const Result<Json> line = bench.measure(options.masks[i], left_s / masks_left);
    if (line.ok()) {
      say(*line);
      continue;
    }
    // The others may do: a machine's time is dear.
    fmt::print(stderr, "{}: {}", options.masks[i], render(line.error()));
    last = line.error();
  }
  return last;
}

}  // namespace
}  // namespace attune

int main(int argc, char** argv) {
  using namespace attune;
  CLI::App app("How far from the best plans are that were tuned without the real tensors");
  DataCommand options;
  if (const auto ended = parse_data_command(argc, argv, app, "--check",
                                            "shares and first guesses only; no device", options))
    return *ended;
  const Status status = options.without_device ? check(options) : run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", render(status.error()));
  return exit_code(status.error().kind);
}
