// How far from the best there is: the tuner's search, the cost model's first guess, and the winner
// of a neighbouring shape, on held shapes that nothing was fitted to. One JSON object a line on
// stdout; bench/regret.py makes the section of docs/lab/tables.md of them.
//
//     regret [--whole] [--budget S] [--backward] DIRECTORY [SPEC...]
//         measures the shapes of these specs, of all without any; caches go into DIRECTORY, which
//         should be empty. Of several GPUs each can take some of the specs. --whole: every legal
//         plan is the yardstick, minutes a shape. --budget: begins no shape after S seconds.
//         --backward: that pass' plans, of which there are few.
//     regret --compile [--whole] [--backward] DIRECTORY [SPEC...]
//         compiles the yardstick's kernels beforehand, without a GPU: for a machine whose time is
//         dear. The searches compile theirs all the same.
//     regret --replay FILE
//         puts recorded exhaustive times under today's model and search; no GPU
//     regret --survey DIRECTORY SPEC...
//         measures plans from all over the space on the specs' own shapes and some more: what the
//         cost model is fitted to
//
// The measuring worker is running when the first shape begins. For each: the search, from an empty
// cache; every plan of the yardstick, from another empty cache; then the plans that these and the
// cost model name against each other, in interleaved rounds, because the least of a hundred medians
// is a lucky one. Needs a GPU and NVRTC.
#include "bench/regret.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "bench/duel.hpp"
#include "generator/support/hash.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/processors.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/isolation/worker.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/search/search.hpp"

namespace attune::regret {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kRounds = 30;
// A space that is so small is the yardstick as it is; of others so many first guesses, and others.
constexpr std::size_t kSmallSpace = 250;
constexpr std::size_t kFirstGuesses = 24, kSpread = 24;
// Of a survey: plans from anywhere, and the model's first of each shape.
constexpr std::size_t kAnywhere = 72, kFirstOfShape = 8;

constexpr const char* kYardstickCache = "exhaustive.db";

struct Held {
  const char* spec;
  ProblemShape shape;
  // Half as long again: no power of two, as lengths in use are.
  ProblemShape neighbour() const {
    ProblemShape longer = shape;
    longer.q_len += longer.q_len / 2;
    longer.kv_len += longer.kv_len / 2;
    return longer;
  }
};
// Head dims 64, 128 and 256; full, causal, window and documents; short and long; grouped heads.
constexpr Held kHeld[] = {
    {"bench/full_d64", {.batch = 8, .heads = 12, .kv_heads = 12, .q_len = 1024, .kv_len = 1024}},
    {"bench/full_d64", {.batch = 1, .heads = 32, .kv_heads = 8, .q_len = 6144, .kv_len = 6144}},
    {"bench/causal_d128", {.batch = 8, .heads = 32, .kv_heads = 8, .q_len = 640, .kv_len = 640}},
    {"bench/causal_d128",
     {.batch = 1, .heads = 24, .kv_heads = 8, .q_len = 10240, .kv_len = 10240}},
    {"bench/full_d128", {.batch = 6, .heads = 16, .kv_heads = 16, .q_len = 1536, .kv_len = 1536}},
    {"bench/full_d128", {.batch = 1, .heads = 16, .kv_heads = 2, .q_len = 2048, .kv_len = 12288}},
    {"bench/causal_d256", {.batch = 8, .heads = 8, .kv_heads = 4, .q_len = 1024, .kv_len = 1024}},
    {"bench/causal_d256", {.batch = 1, .heads = 16, .kv_heads = 8, .q_len = 6144, .kv_len = 6144}},
    {"bench/sliding1024", {.batch = 4, .heads = 16, .kv_heads = 4, .q_len = 3072, .kv_len = 3072}},
    {"bench/sliding1024",
     {.batch = 1, .heads = 32, .kv_heads = 8, .q_len = 12288, .kv_len = 12288}},
    {"bench/doc_causal", {.batch = 4, .heads = 16, .kv_heads = 16, .q_len = 2048, .kv_len = 2048}},
    {"bench/doc_causal", {.batch = 1, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192}},
};

bool is_left_out(const Held& held, std::span<const std::string> specs) {
  return !specs.empty() && std::ranges::find(specs, held.spec) == specs.end();
}

// All, or what a compile budget of seconds a shape affords: the model's first guesses, and of the
// rest a few spread evenly over its order, which would show it if the model were wrong about all of
// them. The same plans on every machine of the target.
Result<std::vector<KernelPlan>> yardstick(const AttentionSpec& spec, const ProblemShape& shape,
                                          Pass pass, bool whole) {
  ATT_TRY(const std::vector<KernelPlan> legal,
          plans_by_cost(spec, shape, device_facts(Target::kSm90a), pass));
  if (whole || legal.size() <= kSmallSpace) return legal;
  std::vector<KernelPlan> plans(legal.begin(), legal.begin() + kFirstGuesses);
  const std::size_t rest = legal.size() - kFirstGuesses;
  for (std::size_t i = 0; i < kSpread; ++i)
    plans.push_back(legal[kFirstGuesses + (2 * i + 1) * rest / (2 * kSpread)]);
  return plans;
}

double now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Options {
  bool whole = false;
  Pass pass = Pass::kForward;
  double budget_s = INFINITY;
  std::string place;  // directory, or the file to replay
  std::vector<std::string> specs;
};

// Seconds until each kind of step was reported done: where a search's time goes. Says on stderr how
// far `what`, of so many plans, is.
class StepClock {
 public:
  explicit StepClock(std::string what = {}, std::size_t plans = 0)
      : what_(std::move(what)), plans_(plans) {}

  bool operator()(const TuneProgress& progress) {
    const double at = now();
    if (at - said_ >= kSaysEverySeconds) {
      said_ = at;
      fmt::print(stderr, "{}: {} candidates of {} plans, {:.0f} s, best {:.1f} us\n", what_,
                 progress.done, plans_, at - began_, progress.best_us);
    }
    constexpr const char* kNames[] = {"waiting", "between waves", "compiling and verifying",
                                      "measuring", "done"};
    static_assert(std::size(kNames) == static_cast<std::size_t>(TuneState::kDone) + 1);
    seconds_[kNames[static_cast<std::size_t>(progress.state)]] += at - std::exchange(last_, at);
    return true;
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  static constexpr double kSaysEverySeconds = 5;
  std::string what_;
  std::size_t plans_;
  double began_ = now(), last_ = began_, said_ = began_;
  std::map<std::string, double> seconds_;
};

Json describe(const TuneResult& result) {
  return {{"seconds", result.seconds},      {"candidates", result.candidates},
          {"measured", result.measured},    {"rejected", result.rejected},
          {"plan", to_string(result.plan)}, {"us", result.median_us}};
}

// One shape of one spec on the GPU.
class Bench {
 public:
  Bench(Device& device, Compiler& compiler, const Options& options)
      : device_(device), compiler_(compiler), directory_(options.place), pass_(options.pass) {}

  Status open(const std::string& spec_name) {
    ATT_TRY(spec_, library_spec(spec_name, &text_));
    return ok_status();
  }
  const AttentionSpec& spec() const { return spec_; }
  Pass pass() const { return pass_; }
  Result<std::vector<KernelPlan>> legal(const ProblemShape& shape) const {
    return plans_by_cost(spec_, shape, device_.facts(), pass_);
  }

  // Seconds until the measuring worker has its device and a first problem. It lives on from problem
  // to problem, so that neither the first search nor its yardstick is to pay for it.
  Result<double> start_worker(const Held& held) {
    const double began = now();
    ATT_CHECK(open(held.spec));
    open_problem(directory_ + "/start.db", held.shape);
    ATT_CHECK(executor_.prepare());
    return now() - began;
  }

  // Into the cache file of that name.
  Result<TuneResult> tune(const std::string& cache, const ProblemShape& shape,
                          std::vector<KernelPlan> plans, bool exhaustive) {
    steps = StepClock(fmt::format("{} {}, {}", spec_.name, to_string(shape),
                                  exhaustive ? "exhaustive" : "search"),
                      plans.size());
    const std::string path = directory_ + "/" + cache;
    ATT_TRY(const auto store, open_store(path));
    open_problem(path, shape);
    const SearchProblem problem{.key = key(shape), .plans = std::move(plans)};
    const double began = now();
    ATT_TRY(TuneResult result,
            search(problem, executor_, *store, {.exhaustive = exhaustive}, now,
                   [this](const TuneProgress& progress) { return steps(progress); }));
    result.seconds = now() - began;  // to its very end, compiles ahead included
    return result;
  }

  // What the runtime would run with that cache.
  Result<PlanChoice> choose(const std::string& cache, const ProblemShape& shape) const {
    ATT_TRY(const auto store, open_store(directory_ + "/" + cache));
    return choose_plan(spec_, shape, device_, store.get(), pass_);
  }

  // Every plan's first median in that cache.
  Result<std::map<std::string, double>> medians(const std::string& cache,
                                                const ProblemShape& shape) const {
    ATT_TRY(const auto store, open_store(directory_ + "/" + cache));
    ATT_TRY(const std::vector<Measurement> rows, store->measurements(key(shape)));
    std::map<std::string, double> first;
    for (const Measurement& row : rows) first.try_emplace(row.plan, row.median_us);
    return first;
  }

  StepClock steps;  // of the last tune()

  // Medians of interleaved rounds, by the name that the plan is given.
  Result<Json> duel(const std::string& cache, const ProblemShape& shape,
                    const std::map<std::string, KernelPlan>& named) {
    ATT_TRY(const auto store, open_store(directory_ + "/" + cache));
    Compiler* const compilers[] = {&compiler_};
    LocalExecutor executor(spec_, shape, device_, compilers, store.get(), 2, pass_);
    return attune::duel(executor, {named.begin(), named.end()}, kRounds);
  }

 private:
  void open_problem(const std::string& path, const ProblemShape& shape) {
    executor_.open(
        {.spec_yaml = text_,
         .spec_file = spec_.name,
         .shape = shape,
         .pass = pass_,
         .device = "cuda:0",
         .compilers = {"nvrtc"},
         .cache = path,
         .seed = 1},
        [&](const Candidate& c) { return candidate_build_digest(spec_, c.plan, compiler_); });
  }
  MeasurementKey key(const ProblemShape& shape) const {
    return {.spec_hash = spec_hash(spec_),
            .device = device_.identity(),
            .shape = shape,
            .protocol = std::string(kMeasurementProtocol),
            .pass = pass_};
  }

  Device& device_;
  Compiler& compiler_;
  const std::string directory_;
  const Pass pass_;
  std::string text_;
  AttentionSpec spec_;
  IsolatedExecutor executor_;
};

// A shape that was not tuned runs what the runtime chooses for it by its nearest bucket, the held
// shape.
Result<Json> measure_neighbour(Bench& bench, const Held& held) {
  ATT_CHECK(bench.open(held.spec));
  const ProblemShape shape = held.neighbour();
  ATT_TRY(const std::vector<KernelPlan> legal, bench.legal(shape));
  ATT_TRY(const PlanChoice bucket, bench.choose("search.db", shape));
  ATT_TRY(const TuneResult found, bench.tune("search.db", shape, legal, false));
  ATT_TRY(const Json medians,
          bench.duel("search.db", shape,
                     {{"first", legal.front()}, {"search", found.plan}, {"bucket", bucket.plan}}));
  return Json{{"neighbour", held.spec},
              {"shape", to_string(shape)},
              {"search", describe(found)},
              {"bucket_of", to_string(bucket.measured_shape)},
              {"bucket_plan", to_string(bucket.plan)},
              {"duel", medians}};
}

Result<Json> measure(Bench& bench, const Held& held, bool whole) {
  ATT_CHECK(bench.open(held.spec));
  ATT_TRY(const std::vector<KernelPlan> legal, bench.legal(held.shape));
  ATT_TRY(const std::vector<KernelPlan> all,
          yardstick(bench.spec(), held.shape, bench.pass(), whole));
  ATT_TRY(const TuneResult found, bench.tune("search.db", held.shape, legal, false));
  Json searched = describe(found);
  searched["steps"] = bench.steps.seconds();
  ATT_TRY(const TuneResult best, bench.tune(kYardstickCache, held.shape, all, true));
  ATT_TRY(const auto times, bench.medians(kYardstickCache, held.shape));
  Json exhaustive = describe(best);
  exhaustive["steps"] = bench.steps.seconds();
  exhaustive["plans"] = all.size();
  exhaustive["times"] = times;
  const auto time_of = [&](const KernelPlan& plan) {
    const auto at = times.find(to_string(plan));
    return at == times.end() ? INFINITY : at->second;
  };
  exhaustive["rank_of_best"] = rank_within(1, all, time_of);
  exhaustive["rank_within_2_percent"] = rank_within(1.02, all, time_of);
  ATT_TRY(
      const Json medians,
      bench.duel(kYardstickCache, held.shape,
                 {{"first", legal.front()}, {"search", found.plan}, {"exhaustive", best.plan}}));
  return Json{{"spec", held.spec},  {"shape", to_string(held.shape)}, {"legal", legal.size()},
              {"search", searched}, {"exhaustive", exhaustive},       {"duel", medians}};
}

void report(const Json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// The running maximum is left out: it is half of the space and costs a third more everywhere.
bool is_surveyed(const KernelPlan& plan) {
  const auto* tile = std::get_if<Sm90aPlan>(&plan.tile);
  return tile != nullptr && tile->frozen_max;
}

// The spec's own; of a single one also as many tokens in shorter sequences.
std::vector<ProblemShape> survey_shapes(const AttentionSpec& spec) {
  std::vector<ProblemShape> shapes = spec.tune_shapes;
  if (shapes.size() != 1) return shapes;
  for (const int part : {4, 16}) {
    ProblemShape shorter = spec.tune_shapes.front();
    shorter.batch *= part;
    shorter.q_len /= part;
    shorter.kv_len /= part;
    shapes.push_back(shorter);
  }
  return shapes;
}

Status survey_spec(Bench& bench, const std::string& spec) {
  ATT_CHECK(bench.open(spec));
  const std::vector<ProblemShape> shapes = survey_shapes(bench.spec());
  std::set<KernelPlan> plans;
  for (const ProblemShape& shape : shapes) {
    ATT_TRY(std::vector<KernelPlan> legal, bench.legal(shape));
    std::erase_if(legal, [](const KernelPlan& plan) { return !is_surveyed(plan); });
    plans.insert(legal.begin(), legal.begin() + std::min(kFirstOfShape, legal.size()));
    // In the order of their texts' hashes: the same ones every time, from anywhere.
    std::ranges::sort(legal, {},
                      [](const KernelPlan& plan) { return hash128_hex(to_string(plan)); });
    plans.insert(legal.begin(), legal.begin() + std::min(kAnywhere, legal.size()));
  }
  for (const ProblemShape& shape : shapes) {
    ATT_TRY(const TuneResult best,
            bench.tune("survey.db", shape, {plans.begin(), plans.end()}, true));
    ATT_TRY(const auto times, bench.medians("survey.db", shape));
    report(
        {{"spec", spec},
         {"shape", to_string(shape)},
         {"exhaustive", {{"seconds", best.seconds}, {"plans", plans.size()}, {"times", times}}}});
  }
  return ok_status();
}

Status survey(const Options& options) {
  std::filesystem::create_directories(options.place);
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  Bench bench(*device, *compiler, options);
  for (const std::string& spec : options.specs) ATT_CHECK(survey_spec(bench, spec));
  return ok_status();
}

Status compile_yardstick(const Options& options) {
  std::filesystem::create_directories(options.place);
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  ATT_TRY(const auto store, open_store(options.place + "/" + kYardstickCache));
  std::vector<std::pair<AttentionSpec, KernelPlan>> wanted;
  for (const Held& held : kHeld) {
    if (is_left_out(held, options.specs)) continue;
    ATT_TRY(const AttentionSpec spec, library_spec(held.spec));
    ATT_TRY(const std::vector<KernelPlan> plans,
            yardstick(spec, held.shape, options.pass, options.whole));
    for (const KernelPlan& plan : plans) wanted.emplace_back(spec, plan);
  }
  parallel_for(static_cast<std::int64_t>(wanted.size()), [&](std::int64_t i) {
    const auto& [spec, plan] = wanted[static_cast<std::size_t>(i)];
    (void)build(spec, plan, *compiler, store.get());  // what does not compile the search notes
  });
  return ok_status();
}

Status run(const Options& options) {
  const double began = now();
  const std::string& directory = options.place;
  std::filesystem::create_directories(directory);
  ATT_TRY(const std::unique_ptr<Device> device, open_cuda_device(0));
  ATT_TRY(const std::unique_ptr<Compiler> compiler, open_nvrtc_compiler());
  Bench bench(*device, *compiler, options);
  const bool compiled_before = std::filesystem::exists(directory + "/" + kYardstickCache);
  ATT_TRY(const double start_seconds, bench.start_worker(kHeld[0]));
  const Json environment{
      {"device", device->identity()},
      {"compiler", compiler->identity()},
      {"cores", usable_processors()},
      {"compiled_before", compiled_before},
      {"worker_start_seconds", start_seconds},
      {"pass", to_string(options.pass)},
      {"yardstick", options.whole
                        ? "the whole space"
                        : fmt::format("the whole space where it has at most {} plans, else "
                                      "the model's first {} and {} spread evenly over the rest",
                                      kSmallSpace, kFirstGuesses, kSpread)}};
  report({{"environment", environment}});
  const auto for_each_held = [&](const auto& measure_one) -> Status {
    for (const Held& held : kHeld) {
      if (is_left_out(held, options.specs)) continue;
      if (now() - began > options.budget_s) {
        fmt::print(stderr, "no time is left for {} {}\n", held.spec, to_string(held.shape));
        continue;
      }
      ATT_TRY(const Json line, measure_one(held));
      report(line);
    }
    return ok_status();
  };
  ATT_CHECK(for_each_held([&](const Held& held) { return measure(bench, held, options.whole); }));
  return for_each_held([&](const Held& held) { return measure_neighbour(bench, held); });
}

}  // namespace
}  // namespace attune::regret

int main(int argc, char** argv) {
  using namespace attune;
  using namespace attune::regret;
  if (argc == 2 && std::string(argv[1]) == "worker") {
    run_worker(STDIN_FILENO, STDOUT_FILENO, [] { return make_local_session(); });
  }
  CLI::App app("How far from the best the tuner's search and the cost model's first guess are");
  Options options;
  bool compile = false, replay = false, survey_only = false, backward = false;
  CLI::App* const modes = app.add_option_group("mode", "default: measure");
  modes->add_flag("--compile", compile, "the yardstick's kernels only; needs no GPU");
  modes->add_flag("--replay", replay, "recorded times under today's search; needs no GPU");
  modes->add_flag("--survey", survey_only, "plans from all over the space of the specs' shapes");
  modes->require_option(0, 1);
  app.add_flag("--backward", backward, "plans of the backward pass")
      ->excludes(modes->get_option("--survey"))
      ->excludes(modes->get_option("--replay"));
  app.add_flag("--whole", options.whole, "every legal plan is the yardstick");
  app.add_option("--budget", options.budget_s, "begin no shape after so many seconds");
  app.add_option("place", options.place, "directory of the caches, or the file to replay")
      ->required();
  app.add_option("specs", options.specs, "default: all");
  CLI11_PARSE(app, argc, argv);
  if (backward) options.pass = Pass::kBackward;
  const Status status = compile       ? compile_yardstick(options)
                        : replay      ? replay_all(options.place)
                        : survey_only ? survey(options)
                                      : run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}", render(status.error()));
  return exit_code(status.error().kind);
}
