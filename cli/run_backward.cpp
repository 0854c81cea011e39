#include "cli/run_backward.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "generator/spec/shape.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/support/memory.hpp"
#include "tuner/measure/backward_problem.hpp"
#include "tuner/measure/memory_need.hpp"

namespace attune::cli {
namespace {

// The oracle takes every pair of a query and a key in fp64 on the host's cores: some seconds.
constexpr double kMostOracleFlops = 4e11;

Status affordable(const AttentionSpec& spec, const ProblemShape& given) {
  const ProblemShape shape = typical_shape(spec, given);
  const double flops = 10.0 * (spec.head_dim_qk + spec.head_dim_v) * double(shape.batch) *
                       double(shape.heads) * double(shape.q_len) * double(shape.kv_len);
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

}  // namespace

Result<RunOutcome> run_backward(const Options& options, const LoadedSpec& loaded,
                                const ProblemShape& shape, std::uint64_t seed, Workbench& bench) {
  const AttentionSpec& spec = loaded.spec;
  ATT_CHECK(affordable(spec, shape));
  ATT_TRY(Device * device, bench.device());
  ATT_CHECK(
      check_fits(need_of_backward(spec, shape), shape, device->facts(), available_memory_bytes()));
  Options any_plan = options;  // --plan is the backward kernel's
  any_plan.plan.clear();
  ATT_TRY(const LoadedPass forward, load_pass(any_plan, spec, shape, Pass::kForward, bench));
  ATT_TRY(const LoadedPass backward, load_pass(options, spec, shape, Pass::kBackward, bench));
  const HostProblem problem = random_problem(spec, shape, seed);
  ATT_TRY(const auto on_device,
          BackwardProblem::make(*device, spec, problem, *forward.kernel, seed));
  ATT_TRY(const Gradients gradients, on_device->run(*backward.kernel));
  const bool rounds_p = device->facts().target != Target::kCpu;
  const std::string wrong = wrong_gradient(
      gradients, oracle_backward(spec, problem, on_device->output_gradients(), rounds_p),
      whole_sample(problem), spec, problem);
  const std::string plan = to_string(backward.chosen.plan);
  const std::size_t workspace = backward.kernel->workspace_bytes(shape);
  RunOutcome outcome{.json = {{"spec", loaded.source},
                              {"pass", "backward"},
                              {"device", device->identity()},
                              {"shape", to_string(shape)},
                              {"plan", plan},
                              {"plan_from", backward.chosen.origin},
                              {"compiler", backward.built.key.compiler},
                              {"compile_ms", backward.built.code.compile_seconds * 1e3},
                              {"workspace_bytes", workspace},
                              {"seed", seed},
                              {"ok", wrong.empty()},
                              {"wrong", wrong}},
                     .text = {},
                     .wrong = wrong};
  outcome.text = fmt::format(
      "{} {} backward on {}\nshape      {}\nplan       {} ({})\ncode       {}\nworkspace  {} "
      "bytes\n"
      "gradients  every element within the oracle's limit: {}, seed {}\n",
      wrong.empty() ? paint("ok", Colour::kGreen) : paint("wrong", Colour::kRed), spec.name,
      device->identity(), to_string(shape), plan, backward.chosen.origin,
      backward.built.key.compiler, workspace, wrong.empty() ? "yes" : "no", seed);
  return outcome;
}

}  // namespace attune::cli
