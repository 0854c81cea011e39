// One device with what makes kernels for it: compilers, the cache and the code that is loaded.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cache/overlay.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/single_flight.hpp"

namespace attune {

class Workshop {
 public:
  // `device`: "cuda:0", "cpu", or empty for what is there. `cache_file`: empty for the user's
  // default, "none" for none; $ATTUNE_SYSTEM_CACHE is read under either. A cache that cannot be
  // used is a warning.
  static Result<std::shared_ptr<Workshop>> open(const std::string& device,
                                                const std::string& cache_file);

  Device& device() { return *device_; }
  const Overlay& cache() const { return *cache_; }

  // From the snapshot in memory, else the cost model; runs no SQL. Thread-safe.
  Result<PlanChoice> choose(const AttentionSpec& spec, const SpecId& id,
                            const ProblemShape& shape) const;
  // Loaded code of a plan, built at the first call. Thread-safe.
  Result<std::shared_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan);

 private:
  Workshop(std::unique_ptr<Device> device, std::unique_ptr<Overlay> cache)
      : device_(std::move(device)), cache_(std::move(cache)) {}
  Result<Compiler*> compiler(Target target);

  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Overlay> cache_;
  std::mutex mutex_;  // guards the compiler
  std::unique_ptr<Compiler> compiler_;
  SingleFlight<LoadedKernel> kernels_;
};

}  // namespace attune
