#include "cli/spec_names.hpp"

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

}  // namespace attune::cli
