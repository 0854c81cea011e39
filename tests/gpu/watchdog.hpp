// A kernel that never ends cannot be called back: what waits for it waits for ever, and nobody
// reads which one it was.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace attune::gpu_test {

// Says `what` and ends the process with kHung unless it is destroyed within `limit`.
class Watchdog {
 public:
  static constexpr int kHung = 99;

  Watchdog(std::string what, std::chrono::seconds limit)
      : thread_([what = std::move(what), limit](const std::stop_token& done) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          if (never.wait_for(lock, done, limit, [&] { return done.stop_requested(); })) return;
          std::printf("no end after %lld s: %s\n", static_cast<long long>(limit.count()),
                      what.c_str());
          std::fflush(stdout);
          std::_Exit(kHung);
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace attune::gpu_test
