#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/device/cpu_pool.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/processors.hpp"

namespace attune {
namespace {

struct Counts {
  std::vector<std::atomic<int>> calls;
  explicit Counts(int items) : calls(static_cast<std::size_t>(items)) {}
  static void count(void* context, int item) {
    ++static_cast<Counts*>(context)->calls[static_cast<std::size_t>(item)];
  }
  void expect(int times) const {
    for (const auto& calls_of_item : calls) ASSERT_EQ(calls_of_item.load(), times);
  }
};

TEST(CpuPool, DoesEveryItemOnceHoweverManyThreads) {
  for (const int threads : {1, 2, 5}) {
    CpuPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int items : {0, 1, 2, 7, 1000}) {
      Counts counts(items);
      // Many short runs: a worker that wakes late must not touch the next one's items.
      for (int run = 0; run < 200; ++run) pool.run(items, &Counts::count, &counts);
      counts.expect(200);
    }
  }
}

// A worker that is late for a run of few items may look when the next one's number of items stands
// there already. The thread sanitizer sees it read what is gone.
TEST(CpuPool, TakesNothingOfTheNextRunForTheLastOnes) {
  CpuPool pool(5);
  for (int run = 0; run < 50000; ++run) {
    for (const int items : {2, 9}) {
      Counts counts(items);
      pool.run(items, &Counts::count, &counts);
      counts.expect(1);
    }
  }
}

TEST(CpuPool, KeepsToTheThreadsThatARunMayUse) {
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::atomic<int> arrived{0};
  };
  // The first two items wait for each other, so two threads must come; more would find work too.
  const auto work = [](void* context, int item) {
    auto* seen = static_cast<Seen*>(context);
    {
      const std::lock_guard lock(seen->mutex);
      seen->threads.insert(std::this_thread::get_id());
    }
    ++seen->arrived;
    while (item < 2 && seen->arrived < 2) std::this_thread::yield();
  };
  CpuPool pool(4);
  Seen two;
  for (int run = 0; run < 100; ++run) {
    two.arrived = 0;
    pool.run(20, work, &two, 2);
  }
  EXPECT_EQ(two.threads.size(), 2u);
  for (const int threads : {1, 0, -1}) {
    Seen one;
    one.arrived = 2;
    pool.run(20, work, &one, threads);
    EXPECT_EQ(one.threads, std::set{std::this_thread::get_id()});
  }
}

TEST(CpuPool, RunsInsideARunAndFromManyThreads) {
  CpuPool pool(3);
  struct Nested {
    CpuPool* pool;
    Counts counts{50};
  } nested{&pool};
  pool.run(
      4,
      [](void* context, int) {
        auto* inner = static_cast<Nested*>(context);
        inner->pool->run(50, &Counts::count, &inner->counts);
      },
      &nested);
  nested.counts.expect(4);

  Counts counts(100);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int run = 0; run < 50; ++run) pool.run(100, &Counts::count, &counts);
    });
  }
  for (std::thread& caller : callers) caller.join();
  counts.expect(200);
}

TEST(CpuPool, HonoursTheLimitOfTheEnvironment) {
  const int all = usable_processors();
  EXPECT_GE(all, 1);
  setenv("ATTUNE_NUM_THREADS", "1", 1);
  EXPECT_EQ(usable_processors(), 1);
  for (const char* nonsense : {"", "0", "-3", "4x", "99999999999"}) {
    setenv("ATTUNE_NUM_THREADS", nonsense, 1);
    EXPECT_EQ(usable_processors(), all) << nonsense;
  }
  unsetenv("ATTUNE_NUM_THREADS");
}

TEST(ParallelFor, DoesEveryItemOnceOnTheProcessorsThatMayBeUsed) {
  for (const char* most : {"1", "3"}) {
    setenv("ATTUNE_NUM_THREADS", most, 1);
    Counts counts(1000);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    parallel_for(1000, [&](std::int64_t i) {
      Counts::count(&counts, static_cast<int>(i));
      {
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      }
      for (int turn = 0; i == 0 && turn < 10000; ++turn) std::this_thread::yield();  // to others
    });
    counts.expect(1);
    EXPECT_LE(threads.size(), static_cast<std::size_t>(usable_processors())) << most;
  }
  unsetenv("ATTUNE_NUM_THREADS");
}

TEST(CpuPool, ScratchIsAlignedAndGrows) {
  void* small = thread_scratch(100);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(thread_scratch(64), small);
  ASSERT_NE(thread_scratch(1 << 20), nullptr);
}

}  // namespace
}  // namespace attune
