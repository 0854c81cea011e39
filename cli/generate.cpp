// attune generate: the source of a spec's kernel, as the compiler sees it.
#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/files.hpp"
#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/spec_source.hpp"
#include "generator/emit/emit.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct GenerateOptions : Options {
  std::string output;
};

Result<ExitCode> run(const GenerateOptions& options) {
  ATT_CHECK(check_options(options));
  Workbench bench(options);
  ATT_TRY(const LoadedSpec loaded, load_spec(options.specs.front()));
  const AttentionSpec& spec = loaded.spec;
  ATT_TRY(const std::vector<Target> wanted, targets(options, spec.targets));
  if (options.targets.size() > 1) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "usage",
                 .message = "generate writes one source: name one target"};
  }
  const Target target = wanted.empty() ? bench.local_target() : wanted.front();
  ATT_TRY(const Pass which, pass(options, spec));
  ATT_TRY(const ProblemShape problem, shape(options, spec));
  ATT_TRY(const ChosenPlan chosen, plan_for(spec, problem, target, which, options, bench));
  ATT_TRY(const GeneratedKernel kernel, emit(spec, chosen.plan));

  note(fmt::format("{}, plan from {}: {}", spec.name, chosen.origin, to_string(chosen.plan)));
  const bool to_stdout = options.output.empty() || options.output == "-";
  if (!to_stdout) {
    ATT_CHECK(write_file(options.output, kernel.source));
  }
  if (options.json) {
    Json json = {{"spec", loaded.source},        {"hash", spec_hash(spec)},
                 {"target", to_string(target)},  {"plan", to_string(chosen.plan)},
                 {"plan_from", chosen.origin},   {"symbol", kernel.symbol},
                 {"body_hash", kernel.body_hash}};
    if (to_stdout) json.set("source", kernel.source);
    print_json(json);
  } else if (to_stdout) {
    print(kernel.source);
  }
  return 0;
}

}  // namespace

Command add_generate(CommandLine& parent) {
  auto options = std::make_shared<GenerateOptions>();
  CommandLine line = parent.command("generate", "Write the kernel's source");
  add_one_kernel(line, *options);
  add_pass(line, *options);
  line.option("-o,--output", options->output, "a file instead of stdout, which is also -");
  line.footer("Example:\n  attune generate causal --target sm_90a > causal.cu");
  return {line, [options] { return finish(run(*options)); }};
}

}  // namespace attune::cli
