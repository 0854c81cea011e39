// attune bench: how fast a spec's kernel is, beside what the device could do at best.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/problem_values.hpp"
#include "cli/progress.hpp"
#include "cli/sequence_options.hpp"
#include "cli/spec_source.hpp"
#include "runtime/support/json.hpp"
#include "tuner/measure/device_problem.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/statistics.hpp"

namespace attune::cli {
namespace {

struct BenchOptions : Options {
  int samples = 30;
};

struct Timing {
  ChosenPlan chosen;
  std::string compiler;
  Spread us;
  Work work;
  double roofline = 0;
};

// As the tuner measures: verified first, cold L2, the device's clock.
Result<Timing> measure(const LoadedSpec& loaded, const ProblemShape& problem, Pass pass,
                       const BenchOptions& options, Workbench& bench) {
  const AttentionSpec& spec = loaded.spec;
  ATT_TRY(Device * device, bench.device());
  ATT_CHECK(check_target(spec, *device));
  const Target target = device->facts().target;
  ATT_TRY(const ChosenPlan chosen, plan_for(spec, problem, target, pass, options, bench));
  ATT_TRY(Compiler * compiler, bench.compiler(target, chosen.compiler_family));
  LocalExecutor executor(spec, problem, *device, std::array{compiler}, bench.store(),
                         std::random_device()(), pass);
  ATT_TRY(const CompiledFacts code, executor.compile(chosen.plan));
  ATT_CHECK(executor.verify(chosen.plan));
  std::vector<double> samples;
  Progress bar(spec.name);
  for (int i = 0; i < options.samples && (i == 0 || !interrupted()); ++i) {
    ATT_TRY(const double us, executor.time_us(chosen.plan));
    samples.push_back(us);
    bar.update(i + 1, options.samples, "measuring");
  }
  bar.clear();
  ATT_TRY(const ProblemValues values, draw_values(spec, problem, kTimedSeed));
  const Work work = work_of(pass, spec, problem, values);
  return Timing{chosen, code.compiler, spread_of(samples), work,
                roofline_us(work, facts_of_dtype(spec, device->facts()))};
}

// What a table of results and its JSON are made of.
struct Results {
  Json json = Json::array();
  Table table{{"spec", "pass", "us", "spread", "TFLOP/s", "GB/s", "roofline", "live", "plan from",
               "shape", "plan"}};

  void add(const LoadedSpec& loaded, const ProblemShape& problem, Pass pass, const Timing& timing) {
    const double us = timing.us.median;
    const double tflops = timing.work.flops / us / 1e6;
    const double gb_per_s = timing.work.bytes / us / 1e3;
    const double share = timing.roofline / us;
    json.push_back({{"spec", loaded.source},
                    {"shape", to_string(problem)},
                    {"pass", to_string(pass)},
                    {"lengths", to_string(loaded.spec.lengths)},
                    {"plan", to_string(timing.chosen.plan)},
                    {"plan_from", timing.chosen.origin},
                    {"compiler", timing.compiler},
                    {"median_us", us},
                    {"spread_us", timing.us.interquartile()},
                    {"flops", timing.work.flops},
                    {"tflops", tflops},
                    {"gb_per_s", gb_per_s},
                    {"live_share", timing.work.live_share},
                    {"roofline_us", timing.roofline},
                    {"roofline_share", share}});
    table.add({loaded.spec.name, std::string(to_string(pass)), fmt::format("{:.1f}", us),
               fmt::format("{:.1f}", timing.us.interquartile()), fmt::format("{:.3g}", tflops),
               fmt::format("{:.3g}", gb_per_s), fmt::format("{:.0f} %", share * 100),
               fmt::format("{:.3f}", timing.work.live_share), timing.chosen.origin,
               problem_text(loaded.spec, problem), to_string(timing.chosen.plan)});
  }
};

// Goes on with the next pass of a spec or shape when one fails; the worst exit code.
Result<ExitCode> bench_spec(LoadedSpec loaded, const BenchOptions& options, Workbench& bench,
                            Results& results) {
  ATT_TRY(const std::vector<Pass> wanted, passes(options, loaded.spec));
  ATT_TRY(const std::vector<ProblemShape> shapes, tune_shapes(options, loaded.spec));
  ATT_CHECK(give_tensors(options, shapes, loaded.spec));
  ATT_CHECK(give_sequences(options, shapes, loaded.spec));
  ExitCode code = 0;
  for (const ProblemShape& problem : shapes) {
    for (const Pass pass : wanted) {
      if (interrupted()) return code;
      const auto timing = measure(loaded, problem, pass, options, bench);
      if (timing.ok()) {
        results.add(loaded, problem, pass, *timing);
      } else {
        code = std::max(code, fail(timing.error()));
      }
    }
  }
  return code;
}

ExitCode run(const BenchOptions& options) {
  if (const Status valid = check_options(options); !valid.ok()) return fail(valid.error());
  Workbench bench(options);
  const auto device = bench.device();
  if (!device.ok()) return fail(device.error());
  Results results;
  ExitCode code = 0;
  for (const std::string& source : options.specs) {
    const auto loaded = load_spec(source);
    code = std::max(code, loaded.ok() ? finish(bench_spec(*loaded, options, bench, results))
                                      : fail(loaded.error()));
  }
  if (options.json) {
    print_json({{"device", device.value()->identity()}, {"results", std::move(results.json)}});
  } else if (!results.json.empty()) {
    print(device.value()->identity() + "\n" + results.table.text());
  }
  return interrupted() ? std::max(code, 1) : code;
}

}  // namespace

Command add_bench(CommandLine& parent) {
  auto options = std::make_shared<BenchOptions>();
  CommandLine line = parent.command("bench", "Measure: time, TFLOP/s, GB/s, share of the roofline");
  add_specs(line, *options);
  add_launches(line, *options);
  line.option("--samples", options->samples, "launches to measure",
              {.show_default = true, .range = {{1, 100'000}}});
  line.footer(
      "TFLOP/s count live elements only, of the backward pass five products. Without --shape, each "
      "spec's `tune: shapes:`.\n"
      "Example:\n  attune bench causal --shape batch=2,heads=16,q_len=8192,kv_len=8192");
  return {line, [options] { return run(*options); }};
}

}  // namespace attune::cli
