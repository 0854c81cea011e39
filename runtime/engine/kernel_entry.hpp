// A kernel as applications hold it: the code that answers a spec and a shape now, and all it had.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/code_on_demand.hpp"
#include "runtime/engine/kernel_table.hpp"
#include "runtime/engine/workshop.hpp"

namespace attune {

// Immutable but for code that is built on demand.
struct KernelVersion {
  PlanChoice choice;
  std::string plan;  // to_string(choice.plan)
  LoadedCode code;
  // For strides or lengths that `code` cannot take, the better first; each is built when a launch
  // comes that those before it cannot take either.
  std::vector<std::unique_ptr<CodeOnDemand>> fallbacks;
  // For launches on pages in which the plan has small boxes; null: its own code is for all.
  std::unique_ptr<CodeOnDemand> for_small_boxes;
};

// Counted: the table holds one reference, every application that was given it another. Thread-safe.
class KernelEntry {
 public:
  // Begins with one reference, its maker's.
  KernelEntry(const KernelKey& key, std::shared_ptr<Workshop> workshop,
              std::shared_ptr<const AttentionSpec> spec,
              std::unique_ptr<const KernelVersion> version);

  const KernelKey key;
  const AttentionSpec& spec() const { return *spec_; }
  Device& device() const { return workshop_->device(); }
  // Whether launches are to be checked (Workshop::checks_launches) and have what that looks at.
  bool checks_launches() const noexcept { return checks_launches_; }

  // What a launch uses at this moment. Valid as long as the entry, also when it is replaced: a
  // captured graph goes on with the code that it captured. No lock.
  const KernelVersion& version() const noexcept {
    return *current_.load(std::memory_order_acquire);
  }
  // From the next launch on. False, and nothing changed, when its code takes a workspace that
  // workspace_bytes() did not promise.
  bool replace(std::unique_ptr<const KernelVersion> version);
  // The same to a version that it had, if it had such a one: what a host tells may come and go at
  // every step, and versions stay as long as the entry.
  bool return_to(const PlanChoice& choice);

  // Enough for every version there was, is and may come (promised_workspace.hpp), so that a version
  // may be replaced between this call and the launch.
  std::size_t workspace_bytes(const ProblemShape& shape) const;
  Status launch(const att::LaunchParams& params, void* workspace, StreamHandle stream) const;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Threads that count at once may lose a hit: a locked addition would cost each look-up more than
  // the number is worth.
  void count_hit() noexcept {
    hits_.store(hits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // Of an entry that stands for a bucket of shapes: whether, by the snapshot of that version
  // (Workshop::snapshot_version), it answers all of them, or some have been measured and have
  // kernels of their own. Found by who asks first; the look-ups after it need no snapshot.
  enum class Serves : std::uint8_t { kUnknown, kAll, kSome };
  Serves serves(std::uint64_t snapshot) const noexcept {
    const std::uint64_t known = serves_.load(std::memory_order_relaxed);
    return known / 2 != snapshot ? Serves::kUnknown : known % 2 == 0 ? Serves::kAll : Serves::kSome;
  }
  void set_serves_all(std::uint64_t snapshot, bool all) noexcept {
    serves_.store(2 * snapshot + (all ? 0 : 1), std::memory_order_relaxed);
  }

  std::uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  std::uint64_t fallback_launches() const {
    return fallback_launches_.load(std::memory_order_relaxed);
  }
  // Plans that are better by what is known and could not be had; the best first.
  std::vector<FailedPlan> failed_plans() const;
  void set_failed_plans(std::vector<FailedPlan> plans);
  // What the host says of its tensors; {} as long as it says nothing.
  MaskData data() const;
  // change(MaskData&) under the entry's lock, so that threads which tell of different parts keep
  // both. Whether anything changed.
  template <typename Change>
  bool change_data(const Change& change) {
    const std::lock_guard lock(mutex_);
    MaskData changed = data_;
    change(changed);
    if (changed == data_) return false;
    data_ = std::move(changed);
    return true;
  }

 private:
  ~KernelEntry() = default;
  Status launch_fallback(const KernelVersion& version, const att::LaunchParams& params,
                         void* workspace, StreamHandle stream) const;

  const std::shared_ptr<Workshop> workshop_;  // outlives the code that is loaded on its device
  const std::shared_ptr<const AttentionSpec> spec_;
  const bool checks_launches_;
  // What workspace_bytes() is made from: room for every plan that may come, of the spec and of what
  // its plans may take sequences apart into.
  struct Promise {
    std::shared_ptr<const AttentionSpec> spec;
    std::vector<WorkspaceRegion> regions;
  };
  static std::vector<Promise> promises(const std::shared_ptr<const AttentionSpec>& spec,
                                       const KernelPlan& plan, const ProblemShape& shape,
                                       const DeviceFacts& device);
  const std::vector<Promise> promised_;
  std::atomic<const KernelVersion*> current_;
  std::atomic<std::uint64_t> serves_{0};  // twice a version, plus one: some
  std::atomic<long> references_{1};
  std::atomic<std::uint64_t> hits_{0};
  mutable std::atomic<std::uint64_t> fallback_launches_{0};
  mutable std::mutex mutex_;  // of writers, guards the rest
  std::vector<std::unique_ptr<const KernelVersion>> versions_;
  std::vector<FailedPlan> failed_plans_;
  MaskData data_;
};

}  // namespace attune
