// attune check: says whether specs are well-formed, and where they are not.
#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/spec_source.hpp"
#include "generator/expr/parser.hpp"
#include "generator/spec/library.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

struct CheckOptions : Options {
  bool list = false;
};

Json describe(const Error& error) {
  return {{"id", error.id},          {"message", error.message},    {"file", error.file},
          {"line", error.span.line}, {"column", error.span.column}, {"hint", error.hint}};
}

Json describe(const LoadedSpec& loaded) {
  const AttentionSpec& spec = loaded.spec;
  Json passes = Json::array();
  for (const Pass pass : spec.passes) passes.push_back(to_string(pass));
  Json warnings = Json::array();
  for (const Error& warning : loaded.warnings) warnings.push_back(describe(warning));
  return {{"source", loaded.source},
          {"ok", true},
          {"name", spec.name},
          {"dtype", to_string(spec.dtype)},
          {"head_dim", {{"qk", spec.head_dim_qk}, {"v", spec.head_dim_v}}},
          {"passes", std::move(passes)},
          {"deterministic", spec.deterministic},
          {"batch_invariant", spec.batch_invariant},
          {"shared_prefixes", spec.shared_prefixes},
          {"hash", spec_hash(spec)},
          {"warnings", std::move(warnings)},
          {"canonical", canonical_text(spec)}};
}

Json describe(const std::string& source, const Error& error) {
  return {{"source", source}, {"ok", false}, {"error", describe(error)}};
}

ExitCode list_library(bool json) {
  Json specs = Json::array();
  for (const LibrarySpec& spec : spec_library()) {
    if (!json) print(fmt::format("{}\n", spec.name));
    specs.push_back({{"name", spec.name}, {"path", spec.path}});
  }
  if (json) print_json({{"specs", std::move(specs)}});
  return 0;
}

// What the expressions were understood to be: definitions expanded, constants folded.
void print_expressions(const AttentionSpec& spec) {
  const auto line = [&](const char* key, const expr::Expr& expression) {
    if (expression)
      print(fmt::format("  {:<5}  {}\n", key, expr::print(expression, spec.environment)));
  };
  line("mask", spec.mask);
  line("score", spec.score);
  line("sink", spec.sink);
}

ExitCode run(const CheckOptions& options) {
  if (options.list) return list_library(options.json);
  if (options.specs.empty()) {
    return fail(Error{.kind = ErrorKind::kBadInput,
                      .id = "usage",
                      .message = "nothing to check",
                      .hint = "name a spec, or --list those of the library"});
  }
  ExitCode code = 0;
  Json specs = Json::array();
  for (const std::string& source : options.specs) {
    const auto loaded = options.json ? read_and_parse(source) : load_spec(source);
    if (!loaded.ok()) {
      code = std::max(code, options.json ? exit_code(loaded.error().kind) : fail(loaded.error()));
      specs.push_back(describe(source, loaded.error()));
      continue;
    }
    const AttentionSpec& spec = loaded->spec;
    if (!options.json) {
      print(fmt::format("{} {}: `{}`, {}, head dim {}, {}\n", paint("ok", Colour::kGreen), source,
                        spec.name, to_string(spec.dtype),
                        spec.head_dim_qk == spec.head_dim_v
                            ? fmt::to_string(spec.head_dim_qk)
                            : fmt::format("{}/{}", spec.head_dim_qk, spec.head_dim_v),
                        spec_hash(spec).substr(0, 8)));
      if (options.specs.size() == 1) print_expressions(spec);
    }
    specs.push_back(describe(*loaded));
  }
  if (options.json) print_json({{"specs", std::move(specs)}});
  return code;
}

}  // namespace

Command add_check(CommandLine& parent) {
  auto options = std::make_shared<CheckOptions>();
  CommandLine line = parent.command("check", "Check specs; errors show the place with a caret");
  add_specs(line, *options, false);
  line.flag("--list", options->list, "the specs of the library");
  add_json(line, *options);
  line.footer("Example:\n  attune check specs/causal.yaml softcap\n  attune check --list");
  return {line, [options] { return run(*options); }};
}

}  // namespace attune::cli
