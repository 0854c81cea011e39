#include "runtime/device/cpu_pool.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "runtime/support/processors.hpp"

namespace attune {
namespace {

// About 20 us: longer than the gap between a model's launches, shorter than a scheduler's tick.
constexpr int kSpins = 2000;

thread_local bool inside_run = false;

void pause() { __builtin_ia32_pause(); }

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
struct Scratch {
  std::unique_ptr<void, FreeMemory> memory;
  std::size_t bytes = 0;
};

}  // namespace

CpuPool::CpuPool(int threads) {
  workers_.reserve(static_cast<std::size_t>(std::max(threads, 1) - 1));
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this, i] { serve(i); });
    } catch (const std::exception&) {
      break;  // the system gives no more threads: fewer do the same work
    }
  }
}

CpuPool::~CpuPool() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

CpuPool& CpuPool::shared() {
  // Never destroyed: a kernel may be launched while static objects go.
  static CpuPool* pool = new CpuPool(usable_processors());
  return *pool;
}

void CpuPool::run(int items, Work work, void* context, int threads) {
  if (items <= 0) return;
  std::unique_lock<std::mutex> running(running_, std::defer_lock);
  if (inside_run || items == 1 || threads <= 1 || workers_.empty() || !running.try_lock()) {
    for (int i = 0; i < items; ++i) work(context, i);
    return;
  }
  work_.store(work, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  items_.store(items, std::memory_order_relaxed);
  threads_.store(threads, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  ticket_.store(std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(items),
                std::memory_order_release);
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();

  inside_run = true;
  take_items(generation);
  inside_run = false;
  for (int spin = 0;; ++spin) {
    const int done = done_.load(std::memory_order_acquire);
    if (done == items) return;
    if (spin < kSpins) {
      pause();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void CpuPool::take_items(std::uint32_t generation) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<std::uint32_t>(ticket >> 32) == generation) {
    const int left = static_cast<int>(ticket & 0xffffffffu);
    if (left == 0) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // Read only now: the run cannot end, and the next one begin, before this item is done.
    const int items = items_.load(std::memory_order_relaxed);
    work_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), items - left);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == items) done_.notify_all();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void CpuPool::serve(int index) {
  inside_run = true;
  std::uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_relaxed) == seen;
         ++spin) {
      pause();
    }
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    // A worker that comes late may read a later run's number: of its own run no item is left then.
    if (index < threads_.load(std::memory_order_relaxed)) take_items(seen);
  }
}

void* thread_scratch(std::size_t bytes) {
  thread_local Scratch scratch;
  if (scratch.bytes < bytes) {
    scratch.memory.reset();
    scratch.bytes = 0;
    const std::size_t rounded = (bytes + 63) / 64 * 64;
    scratch.memory.reset(std::aligned_alloc(64, rounded));
    if (scratch.memory) scratch.bytes = rounded;
  }
  return scratch.memory.get();
}

}  // namespace attune
