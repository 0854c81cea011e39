#include "cli/spec_source.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "generator/spec/limits.hpp"
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

Result<LoadedSpec> load_spec(const std::string& name) {
  ATT_TRY(const SpecText source, name == "-" ? read_stdin() : read_spec(name));
  const auto start = std::chrono::steady_clock::now();
  ATT_TRY(AttentionSpec spec, parse_spec(source.text, source.origin));
  const std::chrono::duration<double> parse = std::chrono::steady_clock::now() - start;
  return LoadedSpec{std::move(spec), name, parse.count(), source.text};
}

}  // namespace attune::cli
