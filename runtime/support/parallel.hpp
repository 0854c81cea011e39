// A loop over independent items on all cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace attune {

// Calls body(i) once for every i of [0, count), from as many threads as the machine has cores and
// in no order. Returns when all are done; `body` must not throw.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) body(i);
  };
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < std::min(cores, count); ++i) threads.emplace_back(work);
  work();
}

}  // namespace attune
