#include "runtime/support/memory.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

namespace attune {
namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// nullopt for "max" and for a file that is not there.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The number behind `name` in lines of "name 123" or "name: 123 kB".
std::optional<std::int64_t> named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  std::int64_t value = 0;
  while (file >> word >> value) {
    if (word == name) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// What a cgroup has left. Pages of files that it holds are given back when memory is short.
std::int64_t left_of_cgroup(const std::string& directory, const char* limit, const char* used,
                            const char* file_pages) {
  const auto most = number_in(directory + limit), taken = number_in(directory + used);
  if (!most || !taken) return kUnknown;
  const std::int64_t files = named_number(directory + "memory.stat", file_pages).value_or(0);
  return std::max<std::int64_t>(0, *most - std::max<std::int64_t>(0, *taken - files));
}

}  // namespace

std::int64_t available_memory_bytes(const std::string& root) {
  const auto kilobytes = named_number(root + "/proc/meminfo", "MemAvailable:");
  const std::int64_t system = kilobytes ? *kilobytes * 1024 : kUnknown;
  const std::string cgroup = root + "/sys/fs/cgroup/";
  return std::min({system, left_of_cgroup(cgroup, "memory.max", "memory.current", "inactive_file"),
                   left_of_cgroup(cgroup + "memory/", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file")});
}

}  // namespace attune
