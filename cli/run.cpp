// attune run: launches a spec's kernel on fresh random input and compares it with the fp64 oracle.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/run_backward.hpp"
#include "cli/sequence_options.hpp"
#include "cli/spec_source.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/support/json.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/device_problem.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune::cli {
namespace {

struct RunOptions : Options {
  int rows = 256;
  std::optional<std::uint64_t> seed;  // else another one each time
};

// Largest difference of two finite values; a non-finite pattern is compare()'s to judge.
double max_error(const std::vector<double>& out, const std::vector<double>& oracle) {
  double largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double difference = std::abs(out[i] - oracle[i]);
    if (std::isfinite(difference)) largest = std::max(largest, difference);
  }
  return largest;
}

struct Check {
  Verdict verdict;
  double o_error = 0, lse_error = 0;
};

Result<Check> verify(Device& device, const AttentionSpec& spec, const HostProblem& problem,
                     const LoadedKernel& kernel, const std::vector<Row>& rows) {
  ATT_TRY(const auto on_device, DeviceProblem::upload(device, spec, problem));
  ATT_CHECK(on_device->poison());
  ATT_CHECK(on_device->launch(kernel, nullptr));
  ATT_TRY(const HostOutput out, on_device->download(rows));
  const ForwardOracle oracle =
      oracle_forward(spec, problem, rows, arithmetic_of(device.facts().target));
  return Check{compare(out, oracle), max_error(out.o, oracle.o.values),
               max_error(out.lse, oracle.lse.values)};
}

Result<RunOutcome> run_forward(const RunOptions& options, const LoadedSpec& loaded,
                               const ProblemShape& problem, std::uint64_t seed, Workbench& bench) {
  const AttentionSpec& spec = loaded.spec;
  ATT_TRY(Device * device, bench.device());
  const auto all =
      double(slice_count(spec, problem)) * double(problem.heads) * double(problem.q_len);
  const double compared = options.rows == 0 ? all : std::min<double>(options.rows, all);
  ATT_CHECK(check_fits(need_of_run(spec, problem, compared), problem, device->facts(),
                       available_memory_bytes()));
  const Target target = device->facts().target;
  ATT_TRY(const ChosenPlan chosen, plan_for(spec, problem, target, Pass::kForward, options, bench));
  ATT_TRY(Compiler * compiler, bench.compiler(target, chosen.compiler_family));
  ATT_TRY(const BuiltKernel built, build(spec, chosen.plan, *compiler, bench.store()));
  ATT_TRY(const auto kernel, device->load(spec, chosen.plan, built.code.image));

  const HostProblem drawn = random_problem(spec, problem, seed);
  const std::vector<Row> rows =
      options.rows == 0 ? all_rows(drawn) : sample_rows(drawn, options.rows, seed);
  ATT_TRY(const Check check, verify(*device, spec, drawn, *kernel, rows));

  const bool right = check.verdict.wrong.empty();
  RunOutcome outcome{.json = {{"spec", loaded.source},
                              {"pass", "forward"},
                              {"device", device->identity()},
                              {"shape", to_string(problem)},
                              {"lengths", to_string(spec.lengths)},
                              {"plan", to_string(chosen.plan)},
                              {"plan_from", chosen.origin},
                              {"compiler", built.key.compiler},
                              {"from_cache", built.from_cache},
                              {"compile_ms", built.code.compile_seconds * 1e3},
                              {"seed", seed},
                              {"rows", rows.size()},
                              {"ok", right},
                              {"wrong", check.verdict.wrong},
                              {"worst_of_allowed", check.verdict.worst},
                              {"o_max_error", check.o_error},
                              {"lse_max_error", check.lse_error}},
                     .text = {},
                     .wrong = check.verdict.wrong};
  outcome.text = fmt::format(
      "{} {} on {}\nshape  {}\nplan   {} ({})\ncode   {}, {}\no      max error {:.2e}\n"
      "lse    max error {:.2e}\nworst  {:.2f} of what its row allows\nrows   {} of {}, seed {}\n",
      right ? paint("ok", Colour::kGreen) : paint("wrong", Colour::kRed), spec.name,
      device->identity(), problem_text(spec, problem), to_string(chosen.plan), chosen.origin,
      built.key.compiler,
      built.from_cache ? "from the cache"
                       : fmt::format("compiled in {:.0f} ms", built.code.compile_seconds * 1e3),
      check.o_error, check.lse_error, check.verdict.worst, rows.size(),
      slice_count(spec, problem) * problem.heads * problem.q_len, seed);
  return outcome;
}

Result<ExitCode> run(const RunOptions& options) {
  ATT_CHECK(check_options(options));
  Workbench bench(options);
  ATT_TRY(LoadedSpec loaded, load_spec(options.specs.front()));
  ATT_TRY(const std::vector<Pass> wanted, first_or_named_passes(options, loaded.spec));
  ATT_TRY(const ProblemShape problem, shape(options, loaded.spec));
  ATT_CHECK(give_tensors(options, std::span(&problem, 1), loaded.spec));
  ATT_CHECK(give_sequences(options, std::span(&problem, 1), loaded.spec));
  ATT_TRY(const Device* device, bench.device());
  ATT_CHECK(check_target(loaded.spec, *device));
  const std::uint64_t seed = options.seed.value_or(std::random_device()());
  Json all = Json::array();
  ExitCode code = 0;
  for (const Pass pass : wanted) {
    ATT_TRY(const RunOutcome outcome, pass == Pass::kForward
                                          ? run_forward(options, loaded, problem, seed, bench)
                                          : run_backward(options, loaded, problem, seed, bench));
    if (!options.json) print(outcome.text);
    all.push_back(outcome.json);
    if (!outcome.wrong.empty()) {
      code =
          fail(Error{.kind = ErrorKind::kFailed, .id = "wrong-result", .message = outcome.wrong});
    }
  }
  if (options.json)
    print_json(all.size() == 1 ? all.items().front() : Json{{"passes", std::move(all)}});
  return code;
}

}  // namespace

Command add_run(CommandLine& parent) {
  auto options = std::make_shared<RunOptions>();
  CommandLine line = parent.command("run", "Run on random input and verify against the oracle");
  add_spec(line, *options);
  add_launches(line, *options);
  line.option("--rows", options->rows, "output rows to compare, spread over the problem; 0: all",
              {.show_default = true, .range = {{0, 1'000'000'000}}});
  line.option("--seed", options->seed, "of the input; default: another one each time");
  line.footer("Example:\n  attune run causal --shape batch=2,heads=16,q_len=4096,kv_len=4096");
  return {line, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli
