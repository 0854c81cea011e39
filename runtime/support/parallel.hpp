// A loop over independent items on all processors that this process may use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "runtime/support/processors.hpp"

namespace attune {

// Calls body(i) once for every i of [0, count), from at most usable_processors() threads and in no
// order. Returns when all are done; `body` must not throw.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) body(i);
  };
  const std::int64_t most = std::min<std::int64_t>(usable_processors(), count);
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < most; ++i) threads.emplace_back(work);
  work();
}

}  // namespace attune
