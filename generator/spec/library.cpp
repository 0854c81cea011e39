#include "generator/spec/library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "generator/spec/yaml_tree.hpp"
#include "generator/support/embedded.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

std::string_view without(std::string_view text, std::string_view prefix, std::string_view suffix) {
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return text;
}

std::string_view library_name(std::string_view path) { return without(path, "specs/", ".yaml"); }

std::vector<LibrarySpec> build_library() {
  std::vector<LibrarySpec> library;
  for (const EmbeddedFile& file : embedded_specs())
    library.push_back({library_name(file.path), file.path, file.text});
  std::ranges::sort(library, {}, &LibrarySpec::name);
  return library;
}

}  // namespace

std::span<const LibrarySpec> spec_library() {
  static const std::vector<LibrarySpec> library = build_library();
  return library;
}

Result<LibrarySpec> find_library_spec(std::string_view name) {
  const std::string_view wanted = library_name(without(name, "./", ""));
  const auto library = spec_library();
  const auto found = std::ranges::find(library, wanted, &LibrarySpec::name);
  if (found != library.end()) return *found;

  // `llama3_8b` means models/llama3_8b: a slip in the name matters more than a missing directory.
  std::vector<std::string_view> names, stems;
  for (const LibrarySpec& spec : library) {
    names.push_back(spec.name);
    stems.push_back(spec.name.substr(spec.name.rfind('/') + 1));
  }
  const auto stem =
      std::ranges::find(stems, nearest_name(wanted.substr(wanted.rfind('/') + 1), stems));
  std::string hint = did_you_mean(wanted, names);
  if (hint.empty() && stem != stems.end())
    hint = fmt::format("did you mean `{}`?", names[static_cast<std::size_t>(stem - stems.begin())]);
  return Error{
      .kind = ErrorKind::kBadInput,
      .id = "spec-not-found",
      .message = fmt::format("no file and no spec of the library is called {}", quoted(name)),
      .hint = std::move(hint)};
}

}  // namespace attune
