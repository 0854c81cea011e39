// One device with what makes kernels for it: compilers, the cache and the code that is loaded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/overlay.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/shape_bucket.hpp"
#include "runtime/engine/single_flight.hpp"
#include "runtime/jit/deadline_compiler.hpp"

namespace attune {

// As open_compiler().
using CompilerOpener =
    std::function<Result<std::unique_ptr<Compiler>>(Target, const std::string& family)>;

struct AppendKernel;
struct BuiltCode;
struct SourceToBuild;

// Code on the device.
struct LoadedCode {
  std::shared_ptr<LoadedKernel> kernel;  // null: there is none
  std::string compiler;                  // identity of the one that made it
};

// Where code came from so far.
struct WorkshopCounters {
  std::atomic<std::uint64_t> compiles{0};
  std::atomic<std::uint64_t> failed_compiles{0};
  std::atomic<std::uint64_t> from_cache{0};
  std::atomic<std::uint64_t> from_cache_without_compiler{0};  // of from_cache
};

// Thread-safe.
class Workshop {
 public:
  // `device`: "cuda:0", "cpu", or empty for what is there. `cache_file`: empty for the user's
  // default, "none" for none; $ATTUNE_SYSTEM_CACHE is read under either. A cache that cannot be
  // used is a warning: to `warn`, as of StoreOptions. `checks_launches`: as below; $ATTUNE_CHECK
  // may ask for it too.
  static Result<std::shared_ptr<Workshop>> open(const std::string& device,
                                                const std::string& cache_file,
                                                std::function<void(const Error&)> warn = {},
                                                bool checks_launches = false);
  // Of parts. `opener` is asked when code must be compiled, and again as long as it has none;
  // what it opens gets `compile_seconds` for each kernel (with_deadline).
  Workshop(std::unique_ptr<Device> device, std::unique_ptr<Overlay> cache,
           CompilerOpener opener = open_compiler, double compile_seconds = kCompileSeconds,
           bool checks_launches = false);

  Device& device() { return *device_; }
  const Overlay& cache() const { return *cache_; }
  const WorkshopCounters& counters() const { return counters_; }
  // Whether what launches are to read of sequences and pages is read and checked before them: for
  // who looks for a mistake.
  bool checks_launches() const { return checks_launches_; }
  // The one of `family` (compiler_family), or the target's own when that is empty; or why there is
  // none.
  Result<Compiler*> compiler(Target target, const std::string& family = "");

  // Reads cache files that changed since they were last read; a `stat` each when none did. True
  // when one did.
  bool refresh_snapshot();
  // Of what was read last: another one after every refresh_snapshot() that returned true, never 0.
  std::uint64_t snapshot_version() const noexcept {
    return snapshot_version_.load(std::memory_order_acquire);
  }
  // What was measured, from the snapshot in memory; runs no SQL: of the nearest shape, and of the
  // nearest in shape and data (cache::launch_distance) where `data` tells shares. Where that was on
  // several kinds of data, what holds for `data`, else for what the spec says of its tensors, else
  // what loses least on the worst.
  MeasuredChoices measured(const AttentionSpec& spec, const SpecId& id, Pass pass,
                           const ProblemShape& shape, const MaskData& data = {}) const;
  // Whether this very shape was. No lock, no allocation.
  bool is_measured(const SpecId& id, Pass pass, const ProblemShape& shape) const noexcept;
  // Whether any shape was for which `bucket` stands (bucket_of, kFine), other than itself. No lock,
  // no allocation; looks at every shape of the spec that was measured.
  bool is_measured_within(const SpecId& id, Pass pass, const ProblemShape& bucket) const noexcept;
  // The best of these, else the cost model's.
  Result<PlanChoice> choose(const AttentionSpec& spec, const SpecId& id, Pass pass,
                            const ProblemShape& shape) const;
  // Loaded code of a plan, built at the first call. `family`: of the compiler that was measured to
  // make the best; where it cannot be opened, code of its making in the cache serves, else the
  // target's own compiler. Where none can be opened the cache's code serves whatever compiler made
  // it; the compiler's kUnavailable when there is none.
  Result<LoadedCode> load(const AttentionSpec& spec, const KernelPlan& plan,
                          const std::string& family = "");
  // What load() then need not wait for. Nothing is loaded: whoever captures a graph meanwhile hears
  // of no other thread's calls of the driver.
  Status build_ahead(const AttentionSpec& spec, const KernelPlan& plan,
                     const std::string& family = "");
  // Builds that no load has taken over yet.
  std::size_t built_ahead() const { return builds_.size(); }
  // As load(), but nothing instead of a compile.
  Result<LoadedCode> load_ready(const AttentionSpec& spec, const KernelPlan& plan,
                                const std::string& family = "");
  // Code that appends to a cache, on this device whatever target `kernel` names; built at the first
  // call, from the cache or by the target's own compiler as load() does. Fails as emit_append()
  // does, too.
  Result<std::shared_ptr<LoadedFunction>> load_append(AppendKernel kernel);
  // Plans of the spec's pass that have code, here or in the cache; load_ready() may still find it
  // damaged.
  std::vector<KernelPlan> ready_plans(const AttentionSpec& spec, Pass pass) const;

 private:
  // Null: nothing of the kind in the cache.
  std::optional<BuiltKernel> find_without_compiler(const AttentionSpec& spec,
                                                   const KernelPlan& plan,
                                                   const std::string& family);
  Result<BuiltKernel> build_or_find(const AttentionSpec& spec, const KernelPlan& plan,
                                    const std::string& family);
  // By load()'s key, until the code is loaded.
  Result<std::shared_ptr<BuiltKernel>> build_once(const std::string& key, const AttentionSpec& spec,
                                                  const KernelPlan& plan,
                                                  const std::string& family);
  // Without the cache.
  Result<BuiltKernel> compile_afresh(const AttentionSpec& spec, const KernelPlan& plan,
                                     const std::string& family);
  Result<BuiltCode> build_source(const SourceToBuild& source);
  Result<std::shared_ptr<LoadedCode>> load_code(const AttentionSpec& spec,
                                                const BuiltKernel& built);

  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Overlay> cache_;
  const std::vector<std::string> cache_files_;  // by layer
  const CompilerOpener opener_;
  const double compile_seconds_;
  const bool checks_launches_;
  WorkshopCounters counters_;
  std::mutex refresh_mutex_;
  std::atomic<std::uint64_t> snapshot_version_{1};
  mutable std::mutex mutex_;                                    // guards the next two
  std::map<std::string, std::unique_ptr<Compiler>> compilers_;  // by family asked for
  std::vector<std::pair<std::string, KernelPlan>>
      loaded_;  // by canonical_text, in order of loading
  SingleFlight<LoadedCode> kernels_;
  SingleFlight<BuiltKernel> builds_;        // of code that is not loaded yet
  SingleFlight<LoadedFunction> functions_;  // by to_string(AppendKernel)
};

}  // namespace attune
