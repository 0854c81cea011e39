#include "tuner/tuner.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "tuner/measure/device_lock.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/run_search.hpp"
#include "tuner/search/search.hpp"

namespace attune {

Result<std::vector<KernelPlan>> plans_by_cost(const AttentionSpec& spec, const ProblemShape& shape,
                                              const DeviceFacts& device) {
  ATT_TRY(const std::vector<Family> families, families_for(spec, device.target));
  std::vector<std::pair<double, KernelPlan>> costed;
  for (const Family family : families) {
    for (const KernelPlan& plan : legal_plans(spec, family, device)) {
      costed.emplace_back(cost_us(spec, plan, shape, device), plan);
    }
  }
  // Equal costs stay in the families' order.
  std::ranges::stable_sort(costed, {}, [](const auto& entry) { return entry.first; });
  std::vector<KernelPlan> plans;
  for (auto& entry : costed) plans.push_back(std::move(entry.second));
  return plans;
}

std::uint64_t fresh_seed() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

Result<TuneResult> run_search(const AttentionSpec& spec, const ProblemShape& shape,
                              const Device& device, Store& store, Executor& executor, int compilers,
                              const TuneOptions& options, const TuneObserver& progress) {
  ATT_TRY(std::vector<KernelPlan> plans, plans_by_cost(spec, shape, device.facts()));
  const SearchProblem problem{.key = {.spec_hash = spec_hash(spec),
                                      .device = device.identity(),
                                      .shape = shape,
                                      .protocol = std::string(kMeasurementProtocol)},
                              .plans = std::move(plans),
                              .compilers = compilers,
                              .compile_while_measuring = device.facts().target != Target::kCpu};
  const std::string directory = std::filesystem::path(store.path()).parent_path().string();
  ATT_TRY(const DeviceLock lock,
          DeviceLock::acquire(directory, device.unit(), [&] { return progress({}); }));
  using std::chrono::steady_clock;
  const Clock clock = [began = steady_clock::now()] {
    return std::chrono::duration<double>(steady_clock::now() - began).count();
  };
  return search(problem, executor, store, options, clock, progress);
}

Result<TuneResult> tune(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                        std::span<Compiler* const> compilers, Store& store,
                        const TuneOptions& options, const TuneObserver& progress) {
  LocalExecutor executor(spec, shape, device, compilers, &store, fresh_seed());
  return run_search(spec, shape, device, store, executor, static_cast<int>(compilers.size()),
                    options, progress);
}

}  // namespace attune
