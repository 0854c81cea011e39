// The winners of every cache file as one immutable table in memory: what a launch looks its plan up
// in. docs/cache.md has the numbers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/store.hpp"

namespace attune {

// spec_hash() as two words; made once a spec, so that a lookup compares no text.
struct SpecId {
  std::uint64_t high = 0, low = 0;
  // Anything but 32 hex digits is hashed into one.
  static SpecId from_hash(std::string_view spec_hash);
  bool operator==(const SpecId&) const = default;
};

struct SnapshotRow {
  SpecId spec;
  Pass pass = Pass::kForward;
  ProblemShape shape;  // as measured
  std::string plan;
  std::string compiler;  // of the build that was measured; empty: not known
  double median_us = 0;
  bool same_driver = true;
  int layer = 0;  // index of the file that answered, as given to the constructor
  std::vector<MeasuredPlan> runners_up;
  std::vector<DataPlans> by_data;

  Winner winner() const {
    return {plan, compiler, median_us, shape, same_driver, runners_up, by_data};
  }
};

struct SnapshotAnswer {
  const SnapshotRow* row = nullptr;  // null: never measured on this hardware
  double distance = 0;               // bucket_distance; 0: the very shape
};

// Immutable, so every member may be called from any thread. `layers` go from the user's file to the
// last system file: the same distance is answered by the first.
class Snapshot {
 public:
  Snapshot() : Snapshot(std::span<const std::vector<ProblemWinner>>{}) {}
  explicit Snapshot(std::span<const std::vector<ProblemWinner>> layers);

  // The row of the very shape, else of the nearest bucket of the same spec and pass. No lock, no
  // allocation.
  SnapshotAnswer find(const SpecId& spec, Pass pass, const ProblemShape& shape) const noexcept;
  // The row of the very shape; null: there is none.
  const SnapshotRow* find_exact(const SpecId& spec, Pass pass,
                                const ProblemShape& shape) const noexcept;
  // Of every shape that was measured. No lock, no allocation.
  std::span<const SnapshotRow> rows_of(const SpecId& spec, Pass pass) const noexcept;
  std::span<const SnapshotRow> rows() const { return rows_; }

 private:
  // What bucket_distance needs of a row: logarithms to base 2, scaled so that the distance is a
  // plain sum of squares.
  using Features = std::array<float, 4>;
  static Features features(const ProblemShape& shape) noexcept;
  struct SpecRange {
    SpecId spec;
    Pass pass = Pass::kForward;
    std::uint32_t begin = 0, end = 0;  // in rows_; empty: a free slot
  };

  std::vector<SnapshotRow> rows_;     // by spec, pass, layer, shape
  std::vector<Features> features_;    // beside rows_
  std::vector<std::uint32_t> exact_;  // open addressing: 1 + index in rows_, 0 free; a power of two
  std::vector<SpecRange> specs_;      // open addressing; a power of two
};

// The current snapshot, read without a lock while another thread puts a new one in its place.
class SnapshotCell {
 public:
  // Keeps the snapshot it saw alive. Short-lived: a replaced snapshot is freed when no older view
  // is left.
  class View {
   public:
    View(View&& other) noexcept
        : readers_(std::exchange(other.readers_, nullptr)), snapshot_(other.snapshot_) {}
    View& operator=(View&&) = delete;
    ~View() {
      if (readers_ != nullptr) readers_->fetch_sub(1, std::memory_order_release);
    }
    const Snapshot* operator->() const { return snapshot_; }
    const Snapshot& operator*() const { return *snapshot_; }

   private:
    friend class SnapshotCell;
    View(std::atomic<std::uint32_t>* readers, const Snapshot* snapshot)
        : readers_(readers), snapshot_(snapshot) {}
    std::atomic<std::uint32_t>* readers_;
    const Snapshot* snapshot_;
  };

  SnapshotCell();
  ~SnapshotCell();
  SnapshotCell(const SnapshotCell&) = delete;
  SnapshotCell& operator=(const SnapshotCell&) = delete;

  View view() const noexcept;
  // Frees replaced snapshots that no view can see any more. Thread-safe.
  void replace(std::unique_ptr<const Snapshot> snapshot);

 private:
  // Threads count themselves in on cache lines of their own, as far as there are enough.
  static constexpr std::size_t kSlots = 64;
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> readers{0};
  };
  struct Retired {
    std::unique_ptr<const Snapshot> snapshot;
    std::uint64_t slots_seen_idle = 0;  // a bit a slot: no reader was counted in at some time since
  };

  mutable std::array<Slot, kSlots> slots_;
  std::atomic<const Snapshot*> current_;
  std::mutex mutex_;  // of writers
  std::vector<Retired> retired_;
};

}  // namespace attune
