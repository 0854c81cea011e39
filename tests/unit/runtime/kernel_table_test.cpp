#include "runtime/engine/kernel_table.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

namespace attune {
namespace {

struct Entry {
  KernelKey key;
};

KernelKey key_of(std::int64_t i) {
  return {.spec = {.high = 1, .low = static_cast<std::uint64_t>(i % 3)},
          .shape = {.batch = 1 + i % 5, .q_len = 1 + i, .kv_len = 7}};
}

TEST(KernelTable, FindsWhatWasAddedAndNothingElse) {
  KernelTable<Entry> table;
  std::deque<Entry> entries;
  for (int i = 0; i < 1000; ++i) {  // outgrows its first table several times
    entries.push_back({key_of(i)});
    ASSERT_EQ(table.add(&entries.back()), &entries.back());
  }
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(table.find(key_of(i)), &entries[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(table.find(key_of(1000)), nullptr);
  KernelKey other = key_of(5);
  ++other.shape.kv_heads;
  EXPECT_EQ(table.find(other), nullptr);
}

TEST(KernelTable, TheFirstEntryOfAKeyStays) {
  KernelTable<Entry> table;
  Entry first{key_of(1)};
  Entry second{key_of(1)};
  EXPECT_EQ(table.add(&first), &first);
  EXPECT_EQ(table.add(&second), &first);
  EXPECT_EQ(table.find(key_of(1)), &first);
}

TEST(KernelTable, RefusesToGrowWithoutBound) {
  constexpr std::size_t kMost = 80;
  KernelTable<Entry> table(kMost);
  std::deque<Entry> entries;
  const auto add_all = [&](std::size_t count, Grain grain) {
    for (std::size_t i = 0; i < count; ++i) {
      entries.push_back({key_of(static_cast<std::int64_t>(i))});
      entries.back().key.grain = grain;
      ASSERT_EQ(table.is_full(), grain == Grain::kCoarse);
      ASSERT_NE(table.add(&entries.back()), nullptr);
    }
    Entry one_more{key_of(1000)};
    one_more.key.grain = grain;
    EXPECT_EQ(table.add(&one_more), nullptr);
    EXPECT_EQ(table.find(one_more.key), nullptr);
  };
  add_all(kMost, Grain::kFine);
  add_all(kMost / 8, Grain::kCoarse);  // what is left for those
  for (Entry& entry : entries) EXPECT_EQ(table.find(entry.key), &entry);
}

TEST(KernelTable, ReadersSeeOnlyWholeEntriesWhileWritersAdd) {
  constexpr int kEntries = 20000;
  KernelTable<Entry> table;
  std::deque<Entry> entries;
  for (int i = 0; i < kEntries; ++i) entries.push_back({key_of(i)});
  std::atomic<int> wrong{0};
  std::atomic<bool> done{false};
  std::vector<std::jthread> threads;
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&] {
      while (!done) {
        for (int i = 0; i < kEntries; i += 97) {
          const Entry* found = table.find(key_of(i));
          if (found != nullptr && found != &entries[static_cast<std::size_t>(i)]) ++wrong;
        }
      }
    });
  }
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (int i = writer; i < kEntries; i += 2) table.add(&entries[static_cast<std::size_t>(i)]);
    });
  }
  threads[2].join();
  threads[3].join();
  done = true;
  threads.clear();
  EXPECT_EQ(wrong, 0);
  for (int i = 0; i < kEntries; ++i) ASSERT_NE(table.find(key_of(i)), nullptr);
}

}  // namespace
}  // namespace attune
