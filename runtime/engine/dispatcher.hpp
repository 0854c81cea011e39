// The kernels of one runtime: found in nanoseconds, made at first use, replaced when the cache or
// the background thread has better ones.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/kernel_entry.hpp"

namespace attune {

struct DispatcherCounters {
  std::atomic<std::uint64_t> misses{0};     // first uses of a spec and bucket of shapes
  std::atomic<std::uint64_t> stand_ins{0};  // of these, answered by code that was there
  std::atomic<std::uint64_t> replacements{0};
  std::atomic<std::uint64_t> failed_replacements{0};
  std::atomic<std::uint64_t> refreshes{0};  // that were asked for
};

// Thread-safe.
class Dispatcher {
 public:
  // `background`: a first use never waits for a compile while other code of the spec is there; a
  // thread chooses and compiles the better plan and replaces it. `most_kernels`: beyond so many,
  // shapes are told apart by powers of two only.
  Dispatcher(std::shared_ptr<Workshop> workshop, bool background,
             std::size_t most_kernels = KernelTable<KernelEntry>::kMaxEntries);
  // Waits for a compile that is under way; what is only queued is dropped.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // The kernel of spec and shape with a reference for the caller: the one of all shapes of a bucket
  // (bucket_of), or of this shape alone where it was measured. A known one: no lock, no allocation.
  // A bucket's first use reads cache files that changed, then loads or compiles; with `background`
  // the code in use for the spec goes on at first. Of a spec whose passes are both, a first use of
  // the forward pass has the backward pass' code built meanwhile, on a thread of its own; what
  // fails there fails again for whoever asks for it.
  Result<KernelEntry*> get(const std::shared_ptr<const AttentionSpec>& spec, const SpecId& id,
                           const ProblemShape& shape, Pass pass = Pass::kForward);

  // Reads the cache files that changed and replaces every kernel for which a better plan is known
  // now. Compiles on this thread and returns the first failure, which costs that kernel alone; with
  // `background` it returns at once and the thread does the work.
  Status refresh();
  // What `entry`'s launches are on from now on; chooses its plan anew, on this thread or in the
  // background as refresh() does.
  Status tell_data(KernelEntry& entry, const MaskData& data);
  // The same of a part of it: what was told of the other stays.
  Status tell_tiles(KernelEntry& entry, const MaskData& tensors);
  Status tell_lengths(KernelEntry& entry, const LengthClass& lengths);
  // Until nothing is queued or compiled in the background.
  void wait_idle();

  Workshop& workshop() const { return *workshop_; }
  // For what outlives the dispatcher.
  const std::shared_ptr<Workshop>& shared_workshop() const { return workshop_; }
  bool background() const { return background_; }
  std::size_t pending() const;  // jobs of the background thread, the current one included
  const DispatcherCounters& counters() const { return counters_; }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    kernels_.for_each(visit);
  }

 private:
  KernelEntry* find_own(const KernelKey& fine, KernelEntry* known,
                        const ProblemShape& shape) const noexcept;
  Result<KernelEntry*> make(const std::shared_ptr<const AttentionSpec>& spec, const SpecId& id,
                            const ProblemShape& shape, Pass pass);
  void build_backward_ahead(const std::shared_ptr<const AttentionSpec>& spec, const SpecId& id,
                            const ProblemShape& shape);
  KernelKey new_key(const SpecId& id, const ProblemShape& shape, Pass pass) const noexcept;
  std::unique_ptr<const KernelVersion> in_use(const AttentionSpec& spec,
                                              const KernelKey& key) const;
  struct FirstVersion {
    std::unique_ptr<const KernelVersion> version;
    bool better_is_known = false;
    std::vector<FailedPlan> failed_plans;  // better ones that could not be had
  };
  Result<FirstVersion> first_version(const AttentionSpec& spec, const KernelKey& key);
  std::unique_ptr<const KernelVersion> stand_in(const AttentionSpec& spec, const KernelKey& key);
  std::unique_ptr<const KernelVersion> make_version(const AttentionSpec& spec,
                                                    const ProblemShape& shape, PlanChoice choice,
                                                    LoadedCode code) const;
  Status improve(KernelEntry& entry, bool retry);
  // After what an entry is told: chooses anew if that changed anything.
  Status take_data(KernelEntry& entry, bool changed);
  Result<LoadedCode> code_for(const AttentionSpec& spec, const PlanChoice& wanted,
                              const KernelVersion& now);
  void enqueue(KernelEntry& entry);
  void enqueue_all();
  void work(const std::stop_token& stop);

  const std::shared_ptr<Workshop> workshop_;
  // False also in a process that was forked from the dispatcher's: the thread is not there, and
  // mutex_ is locked for ever if the thread held it then.
  bool has_worker() const { return background_ && getpid() == process_; }

  const bool background_;  // the thread asks, also while worker_ is made and ended
  const pid_t process_ = getpid();
  KernelTable<KernelEntry> kernels_;
  DispatcherCounters counters_;
  std::mutex improve_mutex_;  // one at a time, so that an older choice never replaces a newer one
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable_any wake_;
  std::condition_variable idle_;
  std::deque<KernelEntry*> queue_;  // with a reference each
  bool sweep_ = false;              // every entry is to be looked at
  bool busy_ = false;
  std::vector<std::future<void>> ahead_;  // each waits for its thread when it is destroyed
  std::jthread worker_;                   // last: it uses all of the above
};

}  // namespace attune
