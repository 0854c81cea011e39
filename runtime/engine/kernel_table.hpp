// Kernels by spec and shape, read on every launch and written at a kernel's first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/snapshot.hpp"

namespace attune {

struct KernelKey {
  SpecId spec;
  ProblemShape shape;
  bool operator==(const KernelKey&) const = default;
};

std::uint64_t hash(const KernelKey& key) noexcept;

// An open-addressing hash table of pointers to entries with a member `key`, which it does not own.
// Entries are only ever added, so a reader needs no lock and no count: it sees a slot empty or
// final, in a table that is never freed before this object. A table that was outgrown is kept, all
// of them together are as large as the current one.
template <typename Entry>
class KernelTable {
 public:
  KernelTable() { grow(64); }

  // Null: not there. Allocates nothing, locks nothing; from any thread.
  Entry* find(const KernelKey& key) const noexcept {
    const Slots& slots = *current_.load(std::memory_order_acquire);
    for (std::uint64_t i = hash(key);; ++i) {
      Entry* entry = slots[i & (slots.size() - 1)].load(std::memory_order_acquire);
      if (entry == nullptr || entry->key == key) return entry;
    }
  }

  // The entry of the key: the given one, or the one that another thread added first. From any
  // thread. Null, and nothing added, when the table holds `kMaxEntries`.
  Entry* add(Entry* entry) {
    const std::lock_guard lock(mutex_);
    if (Entry* first = find(entry->key)) return first;
    if (size_ == kMaxEntries) return nullptr;
    if (2 * (size_ + 1) > tables_.back()->size()) grow(2 * tables_.back()->size());
    place(*tables_.back(), entry);
    ++size_;
    return entry;
  }

  // Every entry that was added before the call, from any thread.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const auto& slot : *current_.load(std::memory_order_acquire)) {
      if (Entry* entry = slot.load(std::memory_order_acquire)) visit(*entry);
    }
  }

  // A server that sees a new shape at every step would otherwise never stop growing.
  static constexpr std::size_t kMaxEntries = 1 << 16;

 private:
  using Slots = std::vector<std::atomic<Entry*>>;  // a power of two, at most half full

  static void place(Slots& slots, Entry* entry) {
    std::uint64_t i = hash(entry->key);
    while (slots[i & (slots.size() - 1)].load(std::memory_order_relaxed) != nullptr) ++i;
    slots[i & (slots.size() - 1)].store(entry, std::memory_order_release);
  }

  void grow(std::size_t size) {
    auto slots = std::make_unique<Slots>(size);
    if (!tables_.empty()) for_each([&](Entry& entry) { place(*slots, &entry); });
    tables_.push_back(std::move(slots));
    current_.store(tables_.back().get(), std::memory_order_release);
  }

  std::atomic<const Slots*> current_{nullptr};
  std::mutex mutex_;  // of writers, guards the rest
  std::vector<std::unique_ptr<Slots>> tables_;
  std::size_t size_ = 0;
};

}  // namespace attune
