// Kernels by spec and shape, read on every launch and written at a kernel's first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/snapshot.hpp"
#include "runtime/engine/shape_bucket.hpp"

namespace attune {

struct KernelKey {
  SpecId spec;
  ProblemShape shape;  // that stands for those which share the kernel
  Pass pass = Pass::kForward;
  Grain grain = Grain::kExact;
  bool operator==(const KernelKey&) const = default;
};

// The spec's words are a hash already; sizes are packed, as far as they fit, and mixed in by a
// multiply and a shift (multiplicative hashing with the golden ratio, Knuth, TAOCP 3, 6.4). Pass
// and grain are not put side by side as bytes: a compiler reads two such neighbours as one word,
// and that waits until the stores of both, just made, have reached the cache.
inline std::uint64_t hash(const KernelKey& key) noexcept {
  const auto word = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  const ProblemShape& shape = key.shape;
  std::uint64_t h =
      key.spec.high ^ key.spec.low ^
      (static_cast<std::uint64_t>(key.pass) << 2 | static_cast<std::uint64_t>(key.grain));
  for (const std::uint64_t sizes :
       {word(shape.kv_heads) << 48 ^ word(shape.heads) << 32 ^ word(shape.batch),
        word(shape.q_len) << 32 ^ word(shape.kv_len)}) {
    h = (h ^ sizes) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  }
  return h;
}

// An open-addressing hash table of pointers to entries with a member `key`, which it does not own.
// Entries are only ever added, so a reader needs no lock and no count: it sees a slot empty or
// final, in a table that is never freed before this object. A table that was outgrown is kept, all
// of them together are as large as the current one.
template <typename Entry>
class KernelTable {
 public:
  // A server whose shapes no bucket holds together would otherwise never stop growing.
  static constexpr std::size_t kMaxEntries = 1 << 16;

  explicit KernelTable(std::size_t most = kMaxEntries) : most_(most) { grow(64); }

  // Null: not there. Allocates nothing, locks nothing; from any thread.
  Entry* find(const KernelKey& key) const noexcept {
    const Slots& slots = *current_.load(std::memory_order_acquire);
    for (std::uint64_t i = hash(key);; ++i) {
      Entry* entry = slots[i & (slots.size() - 1)].load(std::memory_order_acquire);
      if (entry == nullptr || entry->key == key) return entry;
    }
  }

  // Whether only coarse entries are still taken.
  bool is_full() const noexcept { return size_.load(std::memory_order_relaxed) >= most_; }

  // The entry of the key: the given one, or the one that another thread added first. From any
  // thread. Null, and nothing added, when the table is full; for coarse entries an eighth is added
  // to it.
  Entry* add(Entry* entry) {
    const std::lock_guard lock(mutex_);
    if (Entry* first = find(entry->key)) return first;
    if (size_ >= most_ + (entry->key.grain == Grain::kCoarse ? (most_ + 7) / 8 : 0)) return nullptr;
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

  const std::size_t most_;
  std::atomic<const Slots*> current_{nullptr};
  std::atomic<std::size_t> size_{0};
  std::mutex mutex_;  // of writers, guards the rest
  std::vector<std::unique_ptr<Slots>> tables_;
};

}  // namespace attune
