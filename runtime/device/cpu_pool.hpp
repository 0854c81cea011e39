// The threads that run a CPU kernel's work items.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace attune {

// Persistent threads, one less than `threads`: the caller of run() is the last. They spin briefly
// after a run, so that launches in quick succession cost no wake-up, and sleep then.
class CpuPool {
 public:
  explicit CpuPool(int threads);
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  // The process-wide pool of usable_processors() threads.
  static CpuPool& shared();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(context, i) for each i of [0, items) once, on any of `threads` threads (at least
  // one, at most all), starting in that order; returns when all are done. Thread-safe. A call from
  // inside `work`, or while another thread's run is under way, does its items on the calling thread
  // alone.
  using Work = void (*)(void* context, int item);
  void run(int items, Work work, void* context, int threads = INT_MAX);

 private:
  // What worker `index` does, from 1 on.
  void serve(int index);
  // Takes items of the run `generation` until none is left.
  void take_items(std::uint32_t generation);

  // The run under way. A worker that comes late finds another generation in the ticket, or no item
  // left, and takes nothing; who has taken an item may read the other members until it is done.
  std::atomic<std::uint64_t> ticket_{0};  // generation << 32 | items that nobody has taken
  std::atomic<Work> work_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int> items_{0};
  std::atomic<int> threads_{0};
  std::atomic<int> done_{0};

  std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  std::mutex running_;
  std::vector<std::thread> workers_;
};

// At least `bytes` of this thread's own memory, 64-byte aligned, kept until the thread ends. Null
// when memory is out. A later call may move it.
void* thread_scratch(std::size_t bytes);

}  // namespace attune
