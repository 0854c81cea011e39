#include "tuner/host/worker_command.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace attune {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommand = "attune";

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::vector<fs::path> places() {
  std::vector<fs::path> found;
  const auto add_beside = [&](const fs::path& directory) {
    found.push_back(directory / kCommand);
    found.push_back(directory.parent_path() / "bin" / kCommand);
    found.push_back(directory.parent_path() / kCommand);  // of a build tree
  };
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&worker_command), &self) != 0 &&
      self.dli_fname != nullptr) {
    std::error_code failed;
    const fs::path library = fs::canonical(self.dli_fname, failed);
    if (!failed) add_beside(library.parent_path());
  }
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) add_beside(program.parent_path());
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(':'), rest.size());
    // An empty entry would be the working directory, which anybody may have filled.
    if (end > 0 && rest.front() == '/') found.push_back(fs::path(rest.substr(0, end)) / kCommand);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return found;
}

}  // namespace

Result<std::vector<std::string>> worker_command(const std::string& given) {
  const char* chosen = std::getenv("ATTUNE_COMMAND");
  std::vector<fs::path> tried;
  if (!given.empty()) {
    tried = {given};
  } else if (chosen != nullptr && *chosen != '\0') {
    tried = {chosen};
  } else {
    tried = places();
  }
  for (const fs::path& path : tried) {
    if (is_program(path)) return std::vector<std::string>{path.string(), "worker"};
  }
  std::vector<std::string> names;
  for (const fs::path& path : tried) names.push_back(path.string());
  return Error{.kind = ErrorKind::kUnavailable,
               .id = "worker-missing",
               .message = "the `attune` command, whose processes tune for a host, is not there",
               .hint = "install it beside the library, or name it in ATTUNE_COMMAND",
               .detail = fmt::format("tried {}", fmt::join(names, ", "))};
}

}  // namespace attune
