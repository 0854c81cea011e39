// attune tune: finds and stores the fastest verified plan of each spec and shape.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/sequence_options.hpp"
#include "cli/tuning.hpp"
#include "generator/plan/mask_data.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct TuneCommandOptions : Options {
  TuningOptions tuning;
};

Json describe(const TuningProblem& problem, const TuneResult& result) {
  return {{"spec", problem.loaded.source},
          {"shape", to_string(problem.shape)},
          {"pass", to_string(problem.pass)},
          {"ok", true},
          {"lengths", to_string(problem.loaded.spec.lengths)},
          {"plan", to_string(result.plan)},
          {"compiler", result.compiler},
          {"median_us", result.median_us},
          {"candidates", result.candidates},
          {"measured", result.measured},
          {"rejected", result.rejected},
          {"from_cache", result.from_cache},
          {"stopped", result.stopped},
          {"stored", !result.not_stored},
          {"seconds", result.seconds}};
}

Result<ExitCode> run(const TuneCommandOptions& options) {
  catch_interrupt();
  ATT_CHECK(check_options(options));
  ATT_TRY(const std::vector<TuningProblem> all, tuning_problems(options));
  Workbench bench(options);
  ATT_TRY(Store * store, bench.required_store());
  DeviceTuner tuner(options, options.tuning);
  ATT_TRY(Device * device, tuner.device());
  note(fmt::format("tuning {} on {}, into {}", counted(all.size(), "problem"), device->identity(),
                   store->path()));
  Json results = Json::array();
  Table table({"spec", "pass", "us", "candidates", "measured", "rejected", "cached", "time",
               "shape", "plan", "compiler"});
  ExitCode code = 0;
  int tuned = 0;
  for (const TuningProblem& problem : all) {
    if (plausible_specs(problem.loaded.spec, problem.shape).size() > 1)
      note(fmt::format(
          "{} does not say what is in the tensors that its mask reads: three kinds of data are "
          "tuned, which takes three times as long; `sample: segments(700)`, say, makes it one",
          problem.loaded.spec.name));
    Progress bar(problem.pass == Pass::kForward ? problem.loaded.spec.name
                                                : problem.loaded.spec.name + ", backward");
    const auto result = tuner.tune(problem, *store, [&](const TuneProgress& progress) {
      bar.update(progress.done, progress.total, progress_text(progress, problem.loaded.spec));
      return !interrupted();
    });
    bar.clear();
    if (interrupted() && !result.ok()) break;
    if (!result.ok()) {
      code = std::max(code, fail(result.error()));
      results.push_back({{"spec", problem.loaded.source},
                         {"shape", to_string(problem.shape)},
                         {"pass", to_string(problem.pass)},
                         {"ok", false},
                         {"error", result.error().id},
                         {"message", result.error().message}});
      continue;
    }
    if (result->not_stored) code = std::max(code, fail(*result->not_stored));
    results.push_back(describe(problem, *result));
    ++tuned;
    table.add({problem.loaded.spec.name + (result->stopped ? ", stopped" : ""),
               std::string(to_string(problem.pass)), fmt::format("{:.1f}", result->median_us),
               fmt::to_string(result->candidates), fmt::to_string(result->measured),
               fmt::to_string(result->rejected), fmt::to_string(result->from_cache),
               duration(result->seconds), problem_text(problem.loaded.spec, problem.shape),
               to_string(result->plan), result->compiler});
    if (interrupted()) break;
  }
  if (options.json) {
    print_json({{"device", device->identity()},
                {"cache", store->path()},
                {"results", std::move(results)}});
  } else if (tuned > 0) {
    print(table.text());
  }
  if (interrupted()) {
    warn("stopped; what was measured is stored, and the same command goes on from there");
    return 1;
  }
  return code;
}

}  // namespace

Command add_tune(CommandLine& parent) {
  auto options = std::make_shared<TuneCommandOptions>();
  CommandLine line = parent.command("tune", "Find and store the fastest plan for specs and shapes");
  add_specs(line, *options);
  add_shape(line, *options);
  add_passes(line, *options);
  add_device(line, *options);
  add_compiler(line, *options);
  add_cache_file(line, *options);
  add_tensors(line, *options);
  add_sequences(line, *options);
  add_json(line, *options);
  add_tuning(line, options->tuning);
  line.footer(
      "Without --shape, each spec's `tune: shapes:`. Ctrl-C stops after the current step; nothing "
      "is lost.\n"
      "Example:\n  attune tune specs/models/llama3_8b.yaml --cache tuned.db");
  return {line, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli
