#include "cli/run_backward.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/sequence_options.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/backward_problems.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune::cli {
namespace {

// The oracle takes every pair of a query and a key in fp64 on the host's cores: some seconds.
constexpr double kMostOracleFlops = 4e11;
// Beyond it a GPU's own oracle is asked where it can be: it answers at once.
constexpr double kFewOracleFlops = 1e10;

double oracle_flops(const AttentionSpec& spec, const ProblemShape& given) {
  const ProblemShape shape = typical_shape(spec, given);
  return 10.0 * (spec.head_dim_qk + spec.head_dim_v) * double(shape.batch) * double(shape.heads) *
         double(shape.q_len) * double(shape.kv_len);
}

Status affordable(const AttentionSpec& spec, const ProblemShape& given) {
  const double flops = oracle_flops(spec, given);
  if (flops <= kMostOracleFlops) return ok_status();
  return Error{.kind = ErrorKind::kBadInput,
               .id = "oracle-too-slow",
               .message = fmt::format("the fp64 oracle would take {:.1e} operations for {}", flops,
                                      to_string(given)),
               .hint = "a smaller --shape: gradients are compared in full"};
}

struct LoadedPass {
  ChosenPlan chosen;
  BuiltKernel built;
  std::unique_ptr<LoadedKernel> kernel;
};

Result<LoadedPass> load_pass(const Options& options, const AttentionSpec& spec,
                             const ProblemShape& shape, Pass pass, Workbench& bench) {
  ATT_TRY(Device * device, bench.device());
  const Target target = device->facts().target;
  LoadedPass loaded;
  ATT_TRY(loaded.chosen, plan_for(spec, shape, target, pass, options, bench));
  ATT_TRY(Compiler * compiler, bench.compiler(target, loaded.chosen.compiler_family));
  ATT_TRY(loaded.built, build(spec, loaded.chosen.plan, *compiler, bench.store()));
  ATT_TRY(loaded.kernel, device->load(spec, loaded.chosen.plan, loaded.built.code.image));
  return loaded;
}

struct Judgement {
  std::string wrong;
  std::string judged;  // what was looked at, for people
  std::size_t query_rows = 0, key_rows = 0;
};

// All gradients, by the fp64 oracle of the host.
Result<Judgement> judge_on_host(const AttentionSpec& spec, const ProblemShape& shape,
                                std::uint64_t seed, Device& device, const LoadedKernel& forward,
                                const LoadedKernel& backward) {
  ATT_CHECK(affordable(spec, shape));
  ATT_CHECK(
      check_fits(need_of_backward(spec, shape), shape, device.facts(), available_memory_bytes()));
  const HostProblem problem = random_problem(spec, shape, seed);
  ATT_TRY(const auto on_device, BackwardProblem::make(device, spec, problem, forward, seed));
  ATT_TRY(const Gradients gradients, on_device->run(backward));
  const bool rounds_p = device.facts().target != Target::kCpu;
  const BackwardSample all = whole_sample(problem);
  return Judgement{
      .wrong = wrong_gradient(
          gradients, oracle_backward(spec, problem, on_device->output_gradients(), rounds_p), all,
          spec, problem),
      .judged = "every element within the oracle's limit",
      .query_rows = all.queries.size(),
      .key_rows = all.keys.size()};
}

// Rows of all heads, by the GPU's oracle, on the numbers that a tune takes.
Result<Judgement> judge_on_device(const AttentionSpec& spec, const ProblemShape& shape,
                                  std::uint64_t seed, Device& device, GradientOracle& oracle,
                                  const LoadedKernel& forward, const LoadedKernel& backward) {
  ATT_CHECK(check_fits(need_of_timing(spec, shape, device.facts(), Pass::kBackward), shape,
                       device.facts(), available_memory_bytes()));
  ATT_TRY(const auto problem, BackwardProblem::for_timing(device, spec, shape, forward, seed));
  ATT_TRY(const GradientOracle::Answer answer,
          oracle.answer(problem->params(), rows_for_device(spec, shape, seed)));
  ATT_CHECK(problem->poison());
  ATT_CHECK(problem->launch(backward, nullptr));
  ATT_CHECK(problem->check_canaries());
  ATT_TRY(const Verdict verdict, oracle.judge(answer, problem->params()));
  const std::size_t queries = answer.sample.queries.size(), keys = answer.sample.keys.size();
  return Judgement{
      .wrong = verdict.wrong,
      .judged = fmt::format("{} rows of dQ, {} of dK and dV within the GPU's oracle's limit",
                            queries, keys),
      .query_rows = queries,
      .key_rows = keys};
}

// The GPU's oracle for shapes that take the host's long; null: the host's serves.
Result<std::unique_ptr<GradientOracle>> oracle_on_device(const AttentionSpec& spec,
                                                         const ProblemShape& shape, Device& device,
                                                         const std::string& compiler_family,
                                                         Workbench& bench) {
  const auto none = [] { return std::unique_ptr<GradientOracle>(); };
  const Target target = device.facts().target;
  if (target == Target::kCpu || oracle_flops(spec, shape) <= kFewOracleFlops) return none();
  ATT_TRY(Compiler * compiler, bench.compiler(target, compiler_family));
  auto oracle = GradientOracle::make(device, *compiler, spec);
  if (!oracle.ok() && oracle.error().kind == ErrorKind::kUnsupported) return none();
  return oracle;
}

}  // namespace

Result<RunOutcome> run_backward(const Options& options, const LoadedSpec& loaded,
                                const ProblemShape& shape, std::uint64_t seed, Workbench& bench) {
  const AttentionSpec& spec = loaded.spec;
  ATT_TRY(Device * device, bench.device());
  if (device->facts().target == Target::kCpu || is_packed(spec)) ATT_CHECK(affordable(spec, shape));
  Options any_plan = options;  // --plan is the backward kernel's
  any_plan.plan.clear();
  ATT_TRY(const LoadedPass forward, load_pass(any_plan, spec, shape, Pass::kForward, bench));
  ATT_TRY(const LoadedPass backward, load_pass(options, spec, shape, Pass::kBackward, bench));
  ATT_TRY(const auto oracle,
          oracle_on_device(spec, shape, *device, backward.chosen.compiler_family, bench));
  ATT_TRY(const Judgement judgement,
          oracle == nullptr
              ? judge_on_host(spec, shape, seed, *device, *forward.kernel, *backward.kernel)
              : judge_on_device(spec, shape, seed, *device, *oracle, *forward.kernel,
                                *backward.kernel));
  const std::string& wrong = judgement.wrong;
  const std::string plan = to_string(backward.chosen.plan);
  const std::size_t workspace = backward.kernel->workspace_bytes(shape);
  RunOutcome outcome{.json = {{"spec", loaded.source},
                              {"pass", "backward"},
                              {"device", device->identity()},
                              {"shape", to_string(shape)},
                              {"lengths", to_string(spec.lengths)},
                              {"plan", plan},
                              {"plan_from", backward.chosen.origin},
                              {"compiler", backward.built.key.compiler},
                              {"compile_ms", backward.built.code.compile_seconds * 1e3},
                              {"workspace_bytes", workspace},
                              {"seed", seed},
                              {"oracle", oracle == nullptr ? "host" : "device"},
                              {"query_rows", judgement.query_rows},
                              {"key_rows", judgement.key_rows},
                              {"ok", wrong.empty()},
                              {"wrong", wrong}},
                     .text = {},
                     .wrong = wrong};
  outcome.text = fmt::format(
      "{} {} backward on {}\nshape      {}\nplan       {} ({})\ncode       {}\nworkspace  {} "
      "bytes\n"
      "gradients  {}: {}, seed {}\n",
      wrong.empty() ? paint("ok", Colour::kGreen) : paint("wrong", Colour::kRed), spec.name,
      device->identity(), problem_text(spec, shape), plan, backward.chosen.origin,
      backward.built.key.compiler, workspace, judgement.judged, wrong.empty() ? "yes" : "no", seed);
  return outcome;
}

}  // namespace attune::cli
