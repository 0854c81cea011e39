#include "runtime/specs/spec_file.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "generator/spec/library.hpp"
#include "generator/spec/limits.hpp"

namespace attune {
namespace {

Error bad_file(std::string id, std::string message) {
  return {.kind = ErrorKind::kBadInput, .id = std::move(id), .message = std::move(message)};
}

}  // namespace

Result<SpecText> read_spec(const std::string& path_or_name) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path_or_name, ignored);
  if (!std::filesystem::is_regular_file(status) && !std::filesystem::is_fifo(status)) {
    Result<LibrarySpec> found = find_library_spec(path_or_name);
    if (!found.ok() && std::filesystem::is_directory(status)) {
      return bad_file("spec-unreadable",
                      fmt::format("`{}` is a folder, not a spec file", path_or_name));
    }
    if (!found.ok()) return found.error();
    return SpecText{.text = std::string(found->text), .origin = std::string(found->path)};
  }
  std::ifstream in(path_or_name, std::ios::binary);
  // One byte more than allowed tells a file that is too large.
  std::string text(kMaxSpecBytes + 1, '\0');
  if (!in || (!in.read(text.data(), static_cast<std::streamsize>(text.size())) && !in.eof())) {
    return bad_file("spec-unreadable", fmt::format("cannot read `{}`", path_or_name));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxSpecBytes) {
    return bad_file("spec-too-large",
                    fmt::format("`{}` has more than {} bytes", path_or_name, kMaxSpecBytes));
  }
  return SpecText{.text = std::move(text), .origin = path_or_name};
}

Result<AttentionSpec> load_spec(const std::string& path_or_name) {
  ATT_TRY(const SpecText spec, read_spec(path_or_name));
  return parse_spec(spec.text, spec.origin);
}

}  // namespace attune
