#include "cli/spec_source.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "generator/support/embedded.hpp"
#include "generator/support/suggest.hpp"

namespace attune::cli {
namespace {

// Far above any spec; keeps a wrong file name from filling the memory.
constexpr std::size_t kMaxSpecBytes = 1 << 20;

std::string_view library_name(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  return path.substr(0, path.rfind('.'));
}

Result<std::string> read_all(std::istream& in, const std::string& name) {
  std::string text(kMaxSpecBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (!in && !in.eof())) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-unreadable",
                 .message = fmt::format("cannot read `{}`", name)};
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxSpecBytes) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-too-large",
                 .message = fmt::format("`{}` is larger than 1 MiB", name)};
  }
  return text;
}

Result<std::string> read_named(const std::string& name) {
  if (name == "-") return read_all(std::cin, "<stdin>");
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name, ignored) || std::filesystem::is_fifo(name, ignored)) {
    std::ifstream in(name, std::ios::binary);
    if (in) return read_all(in, name);
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "spec-unreadable",
                 .message = fmt::format("cannot open `{}`", name)};
  }
  std::vector<std::string_view> names;
  for (const EmbeddedFile& file : embedded_specs()) {
    if (file.path == name || library_name(file.path) == name) return std::string(file.text);
    names.push_back(library_name(file.path));
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = "a file, - for stdin, or a name that `attune check --list` shows";
  return Error{.kind = ErrorKind::kBadInput,
               .id = "spec-not-found",
               .message = fmt::format("no file and no library spec is called `{}`", name),
               .hint = std::move(hint)};
}

}  // namespace

Result<LoadedSpec> load_spec(const std::string& name) {
  ATT_TRY(const std::string text, read_named(name));
  const auto start = std::chrono::steady_clock::now();
  ATT_TRY(AttentionSpec spec, parse_spec(text, name == "-" ? "<stdin>" : name));
  const std::chrono::duration<double> parse = std::chrono::steady_clock::now() - start;
  return LoadedSpec{std::move(spec), name, parse.count()};
}

}  // namespace attune::cli
