#include "cli/spec_source.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "cli/output.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/warnings.hpp"
#include "runtime/specs/spec_file.hpp"

namespace attune::cli {
namespace {

Result<SpecText> read_stdin() {
  // One byte more than allowed tells an input that is too large; parse_spec says so.
  std::string text(kMaxSpecBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stdin));
  if (std::ferror(stdin) != 0) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-unreadable",
                 .message = "cannot read the standard input"};
  }
  return SpecText{.text = std::move(text), .origin = "<stdin>"};
}

}  // namespace

Result<LoadedSpec> read_and_parse(const std::string& name) {
  ATT_TRY(const SpecText source, name == "-" ? read_stdin() : read_spec(name));
  const auto start = std::chrono::steady_clock::now();
  ATT_TRY(AttentionSpec spec, parse_spec(source.text, source.origin));
  const std::chrono::duration<double> parse = std::chrono::steady_clock::now() - start;
  std::vector<Error> warnings = spec_warnings(spec, source.text, source.origin);
  return LoadedSpec{std::move(spec), name, parse.count(), source.text, std::move(warnings)};
}

Result<LoadedSpec> load_spec(const std::string& name) {
  ATT_TRY(LoadedSpec loaded, read_and_parse(name));
  for (const Error& warning : loaded.warnings) warn(warning);
  return loaded;
}

}  // namespace attune::cli
