// attune sweep: many problems on many GPUs, stopped and resumed at will.
#include "tuner/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/sequence_options.hpp"
#include "cli/tuning.hpp"
#include "generator/spec/draw_lengths.hpp"
#include "runtime/support/json.hpp"
#include "runtime/support/processors.hpp"

namespace attune::cli {
namespace {

struct SweepCommandOptions : Options {
  TuningOptions tuning;
  std::string directory;
  std::string shard;
  std::string gpus;  // a number or "all"; empty: the one --device names
  bool retry = false;
};

Error bad_option(std::string message, std::string hint = {}) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "usage",
               .message = std::move(message),
               .hint = std::move(hint)};
}

Result<ExitCode> plan(const SweepCommandOptions& options) {
  ATT_CHECK(check_options(options));
  ATT_TRY(const std::vector<TuningProblem> all, tuning_problems(options));
  std::vector<SweepProblem> problems;
  for (const TuningProblem& one : all) {
    problems.push_back({one.loaded.source, one.loaded.text, one.shape, one.pass});
    if (names_sequences(options)) problems.back().sequences = sequence_words(one.loaded.spec);
  }
  const Manifest manifest = make_manifest(std::move(problems));
  ATT_CHECK(write_manifest(manifest, options.directory));
  if (options.json) {
    print_json({{"directory", options.directory},
                {"problems", manifest.problems.size()},
                {"hash", manifest.hash()}});
  } else {
    print(fmt::format("{}: {}, {}\n", options.directory,
                      counted(manifest.problems.size(), "problem"), manifest.hash().substr(0, 8)));
  }
  return 0;
}

Result<Shard> shard_of(const SweepCommandOptions& options) {
  if (!options.shard.empty()) return parse_shard(options.shard);
  ATT_TRY(const auto from_environment, shard_from_environment());
  return from_environment.value_or(Shard{});
}

// The devices of this run, as --device would name them.
Result<std::vector<std::string>> devices_of(const SweepCommandOptions& options) {
  if (options.gpus.empty()) return std::vector{options.device};
  if (!options.device.empty()) return bad_option("--gpus and --device exclude each other");
  ATT_TRY(const int present, cuda_device_count());
  int wanted = present;
  if (options.gpus != "all") {
    const char* end = options.gpus.data() + options.gpus.size();
    const auto [stop, error] = std::from_chars(options.gpus.data(), end, wanted);
    if (error != std::errc() || stop != end || wanted < 1) {
      return bad_option(fmt::format("--gpus takes a number or all, not `{}`", options.gpus));
    }
  }
  if (present == 0 || wanted > present) {
    return Error{.kind = ErrorKind::kUnavailable,
                 .id = "sweep-gpus",
                 .message = fmt::format("{} GPUs wanted, {} here", std::max(wanted, 1), present)};
  }
  std::vector<std::string> names;
  for (int i = 0; i < wanted; ++i) names.push_back(fmt::format("cuda:{}", i));
  return names;
}

std::string describe(const SweepProgress& progress, std::size_t devices) {
  std::string text;
  if (progress.failed > 0) text += fmt::format("{} failed, ", progress.failed);
  if (progress.eta_seconds > 0) text += fmt::format("{} left, ", duration(progress.eta_seconds));
  if (devices > 1) text += fmt::format("GPU {}: ", progress.device);
  // First what a narrow terminal must not cut off.
  const TuneProgress& tuning = progress.tuning;
  if (tuning.state == TuneState::kWaiting) text += "waiting for another tuner, ";
  if (tuning.best_us > 0) text += fmt::format("best {:.1f} us, ", tuning.best_us);
  if (progress.problem != nullptr) {
    const SweepProblem& problem = *progress.problem;
    text += fmt::format("{} {}{}", problem.spec_source, short_shape(problem.shape),
                        problem.pass == Pass::kForward ? "" : ", backward");
  }
  if (!tuning.best_plan.empty()) text += ": " + tuning.best_plan;
  return text;
}

Result<ExitCode> run_shard(const SweepCommandOptions& options) {
  catch_interrupt();
  ATT_TRY(const Manifest manifest, read_manifest(options.directory));
  ATT_TRY(const Shard shard, shard_of(options));
  ATT_TRY(const std::vector<std::string> names, devices_of(options));
  TuningOptions tuning = options.tuning;
  if (tuning.search.compile_threads == 0) {
    // The GPUs of a host share its cores.
    tuning.search.compile_threads =
        std::max(1, usable_processors() / static_cast<int>(names.size()));
  }
  std::vector<std::unique_ptr<DeviceTuner>> tuners;
  for (const std::string& name : names) {
    Options of_device = options;
    of_device.device = name;
    tuners.push_back(std::make_unique<DeviceTuner>(of_device, tuning));
    ATT_TRY(Device * device, tuners.back()->device());
    note(fmt::format("shard {} on {}", to_string(shard), device->identity()));
  }
  const SweepTuner tuner = [&](const SweepProblem& problem, int device, Store& store,
                               const TuneObserver& observer) -> Result<TuneResult> {
    ATT_TRY(AttentionSpec spec, parse_spec(problem.spec_yaml, problem.spec_source));
    if (problem.sequences) {
      ATT_CHECK(take_words(*problem.sequences, spec));
      ATT_CHECK(check_lengths(spec, problem.shape));
    }
    LoadedSpec loaded{
        .spec = std::move(spec), .source = problem.spec_source, .text = problem.spec_yaml};
    return tuners[static_cast<std::size_t>(device)]->tune(
        {std::move(loaded), problem.shape, problem.pass}, store, observer);
  };
  Progress bar("sweep");
  const SweepOptions sweep{.directory = options.directory,
                           .shard = shard,
                           .devices = static_cast<int>(names.size()),
                           .retry = options.retry};
  const auto outcome = run_sweep(manifest, sweep, tuner, [&](const SweepProgress& progress) {
    bar.update(progress.done, progress.total, describe(progress, names.size()));
    return !interrupted();
  });
  bar.clear();
  ATT_CHECK(outcome);
  if (options.json) {
    print_json({{"directory", options.directory},
                {"shard", to_string(shard)},
                {"tuned", outcome->tuned},
                {"failed", outcome->failed},
                {"before", outcome->before},
                {"stopped", outcome->stopped}});
  } else {
    print(fmt::format("shard {}: {} tuned, {} failed, {} done before\n", to_string(shard),
                      outcome->tuned, outcome->failed, outcome->before));
  }
  if (outcome->stopped) warn("stopped; the same command goes on from there");
  return outcome->stopped || outcome->failed > 0 ? 1 : 0;
}

Result<ExitCode> status(const SweepCommandOptions& options) {
  ATT_TRY(const Manifest manifest, read_manifest(options.directory));
  const auto entries = sweep_entries(options.directory);
  Json problems = Json::array();
  Table table({"spec", "pass", "state", "us", "shape", "plan"});
  int tuned = 0, failed = 0;
  for (const SweepProblem& problem : manifest.problems) {
    const auto at = entries.find(problem.digest());
    const bool seen = at != entries.end();
    const bool wrong = seen && !at->second.error.empty();
    tuned += seen && !wrong;
    failed += wrong;
    const char* state = !seen ? "open" : wrong ? "failed" : "tuned";
    problems.push_back({{"spec", problem.spec_source},
                        {"shape", to_string(problem.shape)},
                        {"pass", to_string(problem.pass)},
                        {"lengths", problem.sequences ? Json(problem.sequences->lengths) : Json()},
                        {"state", state},
                        {"median_us", seen ? Json(at->second.median_us) : Json()},
                        {"plan", seen ? Json(at->second.plan) : Json()},
                        {"error", seen ? Json(at->second.error) : Json()}});
    table.add({problem.spec_source, std::string(to_string(problem.pass)), state,
               seen && !wrong ? fmt::format("{:.1f}", at->second.median_us) : "-",
               to_string(problem.shape),
               wrong  ? at->second.error
               : seen ? at->second.plan
                      : ""});
  }
  const auto total = static_cast<int>(manifest.problems.size());
  if (options.json) {
    print_json({{"total", total},
                {"tuned", tuned},
                {"failed", failed},
                {"problems", std::move(problems)}});
  } else {
    print(table.text() + fmt::format("{} of {} tuned, {} failed\n", tuned, total, failed));
  }
  return 0;
}

Result<ExitCode> merge(const SweepCommandOptions& options) {
  const std::string target = cache_path(options);
  if (target.empty()) return bad_option("merging needs a cache file", "--cache FILE");
  ATT_TRY(const int gained, merge_sweep(options.directory, target));
  if (options.json) {
    print_json({{"cache", target}, {"rows_gained", gained}});
  } else {
    print(fmt::format("{}: {} rows gained\n", target, gained));
  }
  return 0;
}

}  // namespace

Command add_sweep(CommandLine& parent) {
  CommandLine line = parent.command("sweep", "Tune many problems on many GPUs; stop and resume");
  line.require_command();
  line.footer(
      "Example:\n"
      "  attune sweep plan bringup specs/models/*.yaml\n"
      "  attune sweep run bringup --gpus all          # or --shard 3/8 on each of eight machines\n"
      "  attune sweep status bringup\n"
      "  attune sweep merge bringup --cache tuned.db");
  auto chosen = std::make_shared<std::function<ExitCode()>>();
  const auto add = [&](const char* name, const char* description, auto action,
                       const char* example) {
    auto options = std::make_shared<SweepCommandOptions>();
    CommandLine sub = line.command(name, description);
    sub.option("DIRECTORY", options->directory, "where the sweep keeps its files",
               {.required = true});
    add_json(sub, *options);
    sub.footer(std::string("Example:\n  ") + example);
    sub.when_chosen([chosen, options, action] {
      *chosen = [options, action] { return finish(action(*options)); };
    });
    return std::pair(sub, options);
  };
  auto [planning, plan_options] = add("plan", "Write the list of problems", plan,
                                      "attune sweep plan bringup specs/models/*.yaml");
  add_specs(planning, *plan_options);
  add_shape(planning, *plan_options);
  add_passes(planning, *plan_options);
  add_sequences(planning, *plan_options);
  auto [running, run_options] =
      add("run", "Tune what this shard has left", run_shard, "attune sweep run bringup --gpus all");
  running.option("--shard", run_options->shard,
                 "i/N, counting from 1; default: what Slurm or Kubernetes says, else everything");
  running.option("--gpus", run_options->gpus, "how many of this machine's GPUs, or all");
  running.flag("--retry", run_options->retry, "try problems again that failed before");
  add_device(running, *run_options);
  add_compiler(running, *run_options);
  add_tuning(running, run_options->tuning);
  add("status", "How every problem stands", status, "attune sweep status bringup");
  auto [merging, merge_options] = add("merge", "Add all results to a cache file", merge,
                                      "attune sweep merge bringup --cache tuned.db");
  add_cache_file(merging, *merge_options);
  return {line, [chosen] { return (*chosen)(); }};
}

}  // namespace attune::cli
