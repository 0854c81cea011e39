// attune tune: finds and stores the fastest verified plan of each spec and shape.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/spec_source.hpp"
#include "cli/workbench.hpp"
#include "tuner/isolation/tune_isolated.hpp"
#include "tuner/run_search.hpp"
#include "tuner/tuner.hpp"

namespace attune::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TuneCommandOptions : Options {
  TuneOptions tuning;
  bool in_process = false;
};

struct Problem {
  LoadedSpec loaded;
  ProblemShape shape;
};

Result<std::vector<Problem>> problems(const Options& options) {
  std::vector<Problem> found;
  for (const std::string& source : options.specs) {
    ATT_TRY(const LoadedSpec loaded, load_spec(source));
    if (options.shape.empty() && !loaded.spec.tune_shapes.empty()) {
      for (const ProblemShape& one : loaded.spec.tune_shapes) found.push_back({loaded, one});
    } else {
      ATT_TRY(const ProblemShape one, shape(options, loaded.spec));
      found.push_back({loaded, one});
    }
  }
  return found;
}

std::string_view describe(TuneState state) {
  switch (state) {
    case TuneState::kCompiling:
      return "compiling";
    case TuneState::kVerifying:
      return "verifying";
    case TuneState::kMeasuring:
      return "measuring";
    case TuneState::kDone:
      return "done";
  }
  return "";
}

std::string describe(const TuneProgress& progress) {
  std::string text(describe(progress.state));
  if (progress.eta_seconds > 0) text += fmt::format(", {} left", duration(progress.eta_seconds));
  if (progress.best_us > 0) {
    text += fmt::format(", best {:.1f} us: {}", progress.best_us, progress.best_plan);
  }
  return text;
}

Json describe(const Problem& problem, const TuneResult& result) {
  return {{"spec", problem.loaded.source},
          {"shape", to_string(problem.shape)},
          {"ok", true},
          {"plan", to_string(result.plan)},
          {"median_us", result.median_us},
          {"candidates", result.candidates},
          {"measured", result.measured},
          {"rejected", result.rejected},
          {"from_cache", result.from_cache},
          {"seconds", result.seconds}};
}

// The workers open what this process opened.
WorkerProblem worker_problem(const Problem& problem, const TuneCommandOptions& options,
                             const Device& device, const Compiler& compiler, const Store& store) {
  const bool cpu = device.facts().target == Target::kCpu;
  return {.spec_yaml = problem.loaded.text,
          .spec_file = problem.loaded.source,
          .shape = problem.shape,
          .device = !options.device.empty() ? options.device
                    : cpu                   ? "cpu"
                                            : "cuda:0",
          .compiler = compiler.identity().starts_with("nvrtc") ? "nvrtc" : "llvm",
          .cache = store.path(),
          .seed = fresh_seed()};
}

Result<TuneResult> tune_one(const Problem& problem, const TuneCommandOptions& options,
                            Workbench& bench, IsolatedExecutor& workers) {
  ATT_TRY(Device * device, bench.device());
  ATT_TRY(Compiler * compiler, bench.compiler(device->facts().target));
  ATT_TRY(Store * store, bench.required_store());
  Progress bar(problem.loaded.spec.name);
  const TuneObserver show = [&](const TuneProgress& progress) {
    bar.update(progress.done, progress.total, describe(progress));
    return !interrupted();
  };
  const AttentionSpec& spec = problem.loaded.spec;
  if (options.in_process)
    return tune(spec, problem.shape, *device, *compiler, *store, options.tuning, show);
  return tune_isolated(worker_problem(problem, options, *device, *compiler, *store), spec, *device,
                       *compiler, *store, workers, options.tuning, show);
}

Result<ExitCode> run(const TuneCommandOptions& options) {
  ATT_CHECK(check_options(options));
  Workbench bench(options);
  ATT_TRY(const std::vector<Problem> all, problems(options));
  ATT_TRY(Device * device, bench.device());
  ATT_TRY(Store * store, bench.required_store());
  note(fmt::format("tuning {} problem{} on {}, into {}", all.size(), all.size() == 1 ? "" : "s",
                   device->identity(), store->path()));
  Json results = Json::array();
  Table table(
      {"spec", "us", "candidates", "measured", "rejected", "cached", "time", "shape", "plan"});
  ExitCode code = 0;
  IsolatedExecutor workers;
  for (const Problem& problem : all) {
    const auto result = tune_one(problem, options, bench, workers);
    if (interrupted()) break;
    if (!result.ok()) {
      code = std::max(code, fail(result.error()));
      results.push_back({{"spec", problem.loaded.source},
                         {"shape", to_string(problem.shape)},
                         {"ok", false},
                         {"error", result.error().id},
                         {"message", result.error().message}});
      continue;
    }
    results.push_back(describe(problem, *result));
    table.add({problem.loaded.spec.name, fmt::format("{:.1f}", result->median_us),
               fmt::to_string(result->candidates), fmt::to_string(result->measured),
               fmt::to_string(result->rejected), fmt::to_string(result->from_cache),
               duration(result->seconds), to_string(problem.shape), to_string(result->plan)});
  }
  if (options.json) {
    print_json({{"device", device->identity()},
                {"cache", store->path()},
                {"results", std::move(results)}});
  } else {
    print(table.text());
  }
  if (interrupted()) {
    warn("stopped; what was measured is stored, and the same command goes on from there");
    return 1;
  }
  return code;
}

}  // namespace

Command add_tune(CLI::App& parent) {
  auto options = std::make_shared<TuneCommandOptions>();
  CLI::App* app =
      parent.add_subcommand("tune", "Find and store the fastest plan for specs and shapes");
  add_specs(*app, *options);
  add_shape(*app, *options);
  add_device(*app, *options);
  add_compiler(*app, *options);
  add_cache_file(*app, *options);
  add_json(*app, *options);
  app->add_option("--max-candidates", options->tuning.max_candidates, "try at most so many plans")
      ->check(CLI::PositiveNumber);
  app->add_option("--compile-threads", options->tuning.compile_threads,
                  "default: the machine's cores")
      ->check(CLI::PositiveNumber);
  app->add_flag("--force", options->tuning.force, "measure again what is already measured");
  app->add_flag("--exhaustive", options->tuning.exhaustive, "try every legal plan");
  app->add_flag("--in-process", options->in_process,
                "without worker processes: a kernel that hangs or faults takes this command along");
  app->footer(
      "Without --shape, each spec's `tune: shapes:`. Ctrl-C stops after the current step; nothing "
      "is lost.\n"
      "Example:\n  attune tune specs/models/llama3_8b.yaml --cache tuned.db");
  return {app, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli
