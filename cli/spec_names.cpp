#include "cli/spec_names.hpp"

#include <fmt/format.h>

#include "cli/spec_source.hpp"
#include "generator/spec/library.hpp"
#include "generator/spec/spec.hpp"

namespace attune::cli {

std::map<std::string, std::string> library_names() {
  std::map<std::string, std::string> names;
  for (const LibrarySpec& library : spec_library()) {
    const auto spec = parse_spec(library.text, library.path);
    if (!spec.ok()) continue;
    const auto [at, added] = names.emplace(spec_hash(*spec), library.name);
    if (!added && library.name.size() < at->second.size()) at->second = library.name;
  }
  return names;
}

Result<std::map<std::string, std::string>> names_with(const std::vector<std::string>& own) {
  std::map<std::string, std::string> names = library_names();
  for (const std::string& source : own) {
    ATT_TRY(const LoadedSpec loaded, load_spec(source));
    names[spec_hash(loaded.spec)] = loaded.spec.name;
  }
  return names;
}

std::string name_of(const std::map<std::string, std::string>& names, const std::string& hash) {
  const auto at = names.find(hash);
  return at != names.end() ? at->second : hash.substr(0, 8);
}

std::string with_tensor_names(std::string_view label, const AttentionSpec& spec) {
  const auto& tensors = spec.environment.tensors;
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string named;
  while (!label.empty()) {
    const bool begins_word = named.empty() || !is_part(named.back());
    const auto is_slot = [&](std::size_t slot) {
      return label.starts_with(fmt::format("t{}=", slot));
    };
    std::size_t slot = begins_word ? 0 : tensors.size();
    while (slot < tensors.size() && !is_slot(slot)) ++slot;
    const bool found = slot < tensors.size();
    const std::size_t taken = found ? label.find('=') : 1;
    named += found ? std::string_view(tensors[slot].name) : label.substr(0, taken);
    label.remove_prefix(taken);
  }
  return named;
}

}  // namespace attune::cli
