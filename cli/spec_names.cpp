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

std::string with_tensor_names(std::string label, const AttentionSpec& spec) {
  const auto& tensors = spec.environment.tensors;
  for (std::size_t slot = tensors.size(); slot-- > 0;) {
    const std::string slot_name = fmt::format("t{}=", slot);
    if (const std::size_t at = label.find(slot_name); at != std::string::npos)
      label.replace(at, slot_name.size(), tensors[slot].name + "=");
  }
  return label;
}

}  // namespace attune::cli
