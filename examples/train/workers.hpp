// Threads that share a loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace train {

// As many threads as the process has cores, the caller of run() among them. One run() at a time.
class Workers {
 public:
  Workers();
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Calls body(first, last) on ranges that together are 0 to count, each a multiple of `grain` long
  // but the last, and returns when all are done. `body` must not throw.
  void run(std::size_t count, std::size_t grain,
           const std::function<void(std::size_t first, std::size_t last)>& body);

 private:
  struct Loop;
  void work();

  std::mutex mutex_;
  std::condition_variable begin_;
  std::shared_ptr<Loop> loop_;  // the last one
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace train
