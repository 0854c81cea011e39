// How much memory there is to take.
#pragma once

#include <cstdint>
#include <string>

namespace attune {

// Bytes of main memory that this process can still take: what the system has available, and no more
// than its cgroup (v2 or v1) has left. INT64_MAX when the system does not tell. `root` stands
// before the system's paths, for tests.
std::int64_t available_memory_bytes(const std::string& root = {});

}  // namespace attune
