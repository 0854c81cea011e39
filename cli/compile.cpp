// attune compile: builds kernels and reports what they cost; needs no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/plan_choice.hpp"
#include "cli/spec_source.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct CompileOptions : Options {
  std::string output;
};

struct Compiled {
  BuiltKernel kernel;
  std::string origin;
  int shared_bytes = 0;
};

Result<Compiled> compile(const LoadedSpec& loaded, Target target, const CompileOptions& options,
                         Workbench& bench) {
  const AttentionSpec& spec = loaded.spec;
  ATT_TRY(const Pass which, pass(options, spec));
  ATT_TRY(const ProblemShape problem, shape(options, spec));
  ATT_TRY(const ChosenPlan chosen, plan_for(spec, problem, target, which, options, bench));
  ATT_TRY(Compiler * compiler, bench.compiler(target, chosen.compiler_family));
  // Without --cache everything is compiled anew, so that the times are those of compiling.
  Store* store = options.cache.empty() ? nullptr : bench.store();
  ATT_TRY(BuiltKernel kernel, build(spec, chosen.plan, *compiler, store));
  const int shared =
      resources(spec, chosen.plan).shared_memory_bytes + kernel.code.static_shared_bytes;
  if (!options.output.empty()) {
    auto image = kernel.code.image;
    // PTX, which the driver takes as a C string, is a text in a file.
    const bool is_ptx = target != Target::kCpu && !image.empty() && image.front() == '/';
    if (is_ptx) image.pop_back();
    ATT_CHECK(
        write_file(options.output, {reinterpret_cast<const char*>(image.data()), image.size()}));
  }
  return Compiled{std::move(kernel), chosen.origin, shared};
}

Json describe(const LoadedSpec& loaded, Target target, const Compiled& compiled) {
  const CompiledKernel& code = compiled.kernel.code;
  return {{"spec", loaded.source},
          {"target", to_string(target)},
          {"ok", true},
          {"symbol", compiled.kernel.symbol},
          {"plan", to_string(compiled.kernel.plan)},
          {"plan_from", compiled.origin},
          {"compiler", compiled.kernel.key.compiler},
          {"from_cache", compiled.kernel.from_cache},
          {"registers", code.registers},
          {"spill_store_bytes", code.spill_store_bytes},
          {"spill_load_bytes", code.spill_load_bytes},
          {"stack_bytes", code.stack_bytes},
          {"shared_memory_bytes", compiled.shared_bytes},
          {"image_bytes", code.image.size()},
          {"parse_ms", loaded.parse_seconds * 1e3},
          {"emit_ms", compiled.kernel.emit_seconds * 1e3},
          {"compile_ms", code.compile_seconds * 1e3}};
}

std::vector<std::string> row(const LoadedSpec& loaded, Target target, const Compiled& compiled) {
  const CompiledKernel& code = compiled.kernel.code;
  return {loaded.spec.name,
          std::string(to_string(target)),
          fmt::to_string(code.registers),
          fmt::to_string(code.spill_store_bytes + code.spill_load_bytes),
          fmt::to_string(compiled.shared_bytes),
          fmt::to_string(code.image.size()),
          fmt::format("{:.1f}", loaded.parse_seconds * 1e3),
          fmt::format("{:.1f}", compiled.kernel.emit_seconds * 1e3),
          compiled.kernel.from_cache ? "cached" : fmt::format("{:.1f}", code.compile_seconds * 1e3),
          to_string(compiled.kernel.plan)};
}

ExitCode run(const CompileOptions& options) {
  if (const Status valid = check_options(options); !valid.ok()) return fail(valid.error());
  Workbench bench(options);
  Json kernels = Json::array();
  Table table({"spec", "target", "registers", "spill bytes", "shared bytes", "image bytes",
               "parse ms", "emit ms", "compile ms", "plan"});
  ExitCode code = 0;
  int built = 0;
  for (const std::string& source : options.specs) {
    const auto loaded = load_spec(source);
    if (!loaded.ok()) {
      code = std::max(code, fail(loaded.error()));
      continue;
    }
    auto wanted = targets(options, loaded->spec.targets);
    if (!wanted.ok()) return fail(wanted.error());
    if (wanted->empty()) wanted->push_back(bench.local_target());
    if (!options.output.empty() && options.specs.size() * wanted->size() > 1) {
      return fail(Error{.kind = ErrorKind::kBadInput,
                        .id = "usage",
                        .message = "--output takes one kernel: name one spec and one target"});
    }
    for (const Target target : *wanted) {
      if (interrupted()) return 1;
      const auto compiled = compile(*loaded, target, options, bench);
      if (!compiled.ok()) {
        code = std::max(code, fail(compiled.error()));
        kernels.push_back({{"spec", source},
                           {"target", to_string(target)},
                           {"ok", false},
                           {"error", compiled.error().id},
                           {"message", compiled.error().message}});
        continue;
      }
      kernels.push_back(describe(*loaded, target, *compiled));
      table.add(row(*loaded, target, *compiled));
      ++built;
    }
  }
  if (options.json) {
    print_json({{"kernels", std::move(kernels)}});
  } else if (built > 0) {
    print(table.text());
  }
  return code;
}

}  // namespace

Command add_compile(CommandLine& parent) {
  auto options = std::make_shared<CompileOptions>();
  CommandLine line = parent.command("compile", "Compile; reports registers, spills and times");
  add_specs(line, *options);
  add_targets(line, *options);
  add_pass(line, *options);
  add_shape(line, *options);
  add_plan(line, *options);
  add_device(line, *options);
  add_compiler(line, *options);
  add_cache_file(line, *options);
  add_json(line, *options);
  line.option("-o,--output", options->output, "write the cubin or object file here");
  line.footer(
      "Needs no GPU. Keeps nothing unless --cache names a file.\n"
      "Example:\n  attune compile causal softcap --target sm_80,sm_90a");
  return {line, [options] { return run(*options); }};
}

}  // namespace attune::cli
