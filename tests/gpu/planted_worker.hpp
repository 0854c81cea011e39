// A worker whose compiler replaces chosen kernels by ones that hang, fault, compute nothing or do
// not compile. This test binary, started as `gpu_test planted-worker`.
#pragma once

#include <map>
#include <string>

namespace attune::gpu_test {

inline constexpr const char* kPlantedWorker = "planted-worker";

// Tells workers that are started from now on what to plant: "hang", "fault", "miscompute" or
// "no-compile" by kernel symbol.
void plant(const std::map<std::string, std::string>& by_symbol);

// Serves requests until standard input ends.
[[noreturn]] void run_planted_worker();

}  // namespace attune::gpu_test
