#include "cli/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/output.hpp"
#include "cli/sequence_options.hpp"
#include "generator/plan/plan.hpp"
#include "generator/support/suggest.hpp"
#include "runtime/jit/compiler.hpp"
#include "runtime/specs/tensor_file.hpp"

namespace attune::cli {
namespace {

constexpr std::string_view kBothPasses = "both";

Error unknown_pass(const std::string& name, std::string hint) {
  return Error{.kind = ErrorKind::kBadInput,
               .id = "pass-unknown",
               .message = "unknown pass `" + name + "`",
               .hint = std::move(hint)};
}

}  // namespace

void add_spec(CommandLine& line, Options& options) {
  line.option("SPEC", options.specs, "a YAML file, a library name (causal), or - for stdin",
              {.required = true, .exactly_one = true});
}

void add_specs(CommandLine& line, Options& options, bool required) {
  line.option("SPEC", options.specs, "YAML files, library names (causal), or - for stdin",
              {.required = required});
}

void add_targets(CommandLine& line, Options& options) {
  line.option("--target", options.targets,
              "sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120 or cpu; several with commas",
              {.commas = true});
}

void add_pass(CommandLine& line, Options& options) {
  line.option("--pass", options.pass, "forward or backward");
}

void add_passes(CommandLine& line, Options& options) {
  line.option("--pass", options.pass, "forward, backward or both; default: as the spec says");
}

void add_shape(CommandLine& line, Options& options) {
  line.option("--shape", options.shape, "batch=2,heads=32,kv_heads=8,q_len=8192,kv_len=8192");
}

void add_plan(CommandLine& line, Options& options) {
  line.option("--plan", options.plan, "this plan instead of the best one known");
}

void add_device(CommandLine& line, Options& options) {
  line.option("--device", options.device, "cuda:0 or cpu; default: the first GPU, else the CPU");
}

void add_compiler(CommandLine& line, Options& options) {
  line.option("--compiler", options.compiler,
              "nvrtc, llvm, llvm-list or auto: the tuned code's, else what serves the target");
}

void add_cache_file(CommandLine& line, Options& options) {
  line.option("--cache", options.cache, "the cache file, or none; default: $ATTUNE_CACHE");
}

void add_json(CommandLine& line, Options& options) {
  line.flag("--json", options.json, "results as JSON");
}

void add_tensors(CommandLine& line, Options& options) {
  line.option("--tensor", options.tensors,
              "NAME=FILE: a tensor of the spec from a .npy file, instead of a drawn one",
              {.commas = true});
}

void add_launches(CommandLine& line, Options& options) {
  add_shape(line, options);
  add_passes(line, options);
  add_plan(line, options);
  add_device(line, options);
  add_compiler(line, options);
  add_cache_file(line, options);
  add_tensors(line, options);
  add_sequences(line, options);
  add_json(line, options);
}

void add_one_kernel(CommandLine& line, Options& options) {
  add_spec(line, options);
  add_targets(line, options);
  add_shape(line, options);
  add_plan(line, options);
  add_device(line, options);
  add_cache_file(line, options);
  add_json(line, options);
}

Status check_options(const Options& options) {
  ATT_CHECK(targets(options, {}));
  if (!options.shape.empty()) {
    auto parsed = parse_shape(options.shape);
    if (!parsed.ok()) {
      parsed.error().file = "--shape";
      return parsed.error();
    }
  }
  if (!options.plan.empty()) ATT_CHECK(parse_plan(options.plan));
  if (!options.pass.empty() && options.pass != kBothPasses && !pass_from_string(options.pass)) {
    return unknown_pass(options.pass, "forward, backward or both");
  }
  const auto* const named = std::ranges::find(kCompilers, options.compiler, &CompilerName::name);
  if (options.compiler != "auto" && named == std::end(kCompilers)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "compiler-unknown",
                 .message = "unknown compiler `" + options.compiler + "`",
                 .hint = "nvrtc, llvm, llvm-list or auto"};
  }
  return ok_status();
}

Result<std::vector<Target>> targets(const Options& options, const std::vector<Target>& fallback) {
  if (options.targets.empty() && !options.plan.empty()) {
    ATT_TRY(const KernelPlan plan, parse_plan(options.plan));
    return std::vector{plan.target};
  }
  if (options.targets.empty()) return fallback;
  std::vector<Target> found;
  for (const std::string& name : options.targets) {
    const auto target = target_from_string(name);
    if (!target) {
      std::vector<std::string_view> names;
      for (const Target known : kTargets) names.push_back(to_string(known));
      const std::string hint = did_you_mean(name, names);
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "target-unknown",
                   .message = "unknown target `" + name + "`",
                   .hint = hint.empty() ? "one of " + join_names(names) : hint};
    }
    found.push_back(*target);
  }
  return found;
}

// Any spec can be asked for either pass: `passes:` says what tuning and sweeps do of themselves.
Result<Pass> pass(const Options& options, const AttentionSpec& spec) {
  if (options.pass.empty()) return spec.passes.front();
  if (const auto named = pass_from_string(options.pass)) return *named;
  return unknown_pass(options.pass, "forward or backward");
}

Result<std::vector<Pass>> passes(const Options& options, const AttentionSpec& spec) {
  if (options.pass.empty()) return spec.passes;
  if (options.pass == kBothPasses) return std::vector(std::begin(kPasses), std::end(kPasses));
  ATT_TRY(const Pass one, pass(options, spec));
  return std::vector{one};
}

Result<std::vector<Pass>> first_or_named_passes(const Options& options, const AttentionSpec& spec) {
  if (options.pass.empty()) return std::vector{spec.passes.front()};
  return passes(options, spec);
}

Result<ProblemShape> shape(const Options& options, const AttentionSpec& spec) {
  if (!options.shape.empty()) return parse_shape(options.shape);
  if (!spec.tune_shapes.empty()) return spec.tune_shapes.front();
  const ProblemShape common{.batch = 1, .heads = 8, .kv_heads = 8, .q_len = 1024, .kv_len = 1024};
  note("no --shape and none in the spec: taking " + to_string(common));
  return common;
}

Status give_tensors(const Options& options, std::span<const ProblemShape> shapes,
                    AttentionSpec& spec) {
  ATT_CHECK(attune::give_tensors(options.tensors, spec));
  for (const ProblemShape& shape : shapes) ATT_CHECK(check_given(spec, shape));
  return ok_status();
}

Result<std::vector<ProblemShape>> tune_shapes(const Options& options, const AttentionSpec& spec) {
  if (options.shape.empty() && !spec.tune_shapes.empty()) return spec.tune_shapes;
  ATT_TRY(const ProblemShape one, shape(options, spec));
  return std::vector{one};
}

}  // namespace attune::cli
