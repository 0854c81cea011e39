#include "runtime/support/processors.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace attune {
namespace {

int affinity_processors() {
  // More than 1024 processors need a larger set than cpu_set_t.
  for (int most = CPU_SETSIZE; most <= (1 << 20); most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(1, count);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Processors that the cgroup's quota is worth; 0: no limit.
int quota_processors() {
  double quota = 0;
  double period = 0;
  std::string first;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> first >> period) {
    if (first == "max") return 0;
    quota = std::strtod(first.c_str(), nullptr);
  } else {
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min(std::ceil(quota / period), 65536.0));
}

int asked_processors() {
  const char* asked = std::getenv("ATTUNE_NUM_THREADS");
  if (asked == nullptr) return 0;
  const std::string_view text(asked);
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? count : 0;
}

}  // namespace

int usable_processors() {
  int count = affinity_processors();
  for (const int limit : {quota_processors(), asked_processors()}) {
    if (limit > 0) count = std::min(count, limit);
  }
  return count;
}

}  // namespace attune
