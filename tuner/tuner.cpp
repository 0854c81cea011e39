#include "tuner/tuner.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "generator/plan/any_pages.hpp"
#include "tuner/measure/device_lock.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/run_search.hpp"
#include "tuner/search/search.hpp"

namespace attune {

std::uint64_t fresh_seed() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

Result<TuneResult> run_search(const AttentionSpec& spec, const ProblemShape& shape,
                              const Device& device, Store& store, Executor& executor, int compilers,
                              const TuneOptions& options, const TuneObserver& progress) {
  ATT_TRY(std::vector<KernelPlan> plans, plans_by_cost(spec, shape, device.facts(), options.pass));
  const MaskData data = options.data ? *options.data : mask_data(spec, shape);
  plans = plans_for_pages(spec, data.lengths.page_size, std::move(plans), device.facts());
  if (plans.empty()) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .id = "plan-unsupported",
                 .message = fmt::format("no plan reads pages of {} rows", data.lengths.page_size)};
  }
  const SearchProblem problem{.key = {.spec_hash = spec_hash(spec),
                                      .device = device.identity(),
                                      .shape = shape,
                                      .protocol = std::string(kMeasurementProtocol),
                                      .pass = options.pass,
                                      .spec_text = canonical_text(spec),
                                      .data = data},
                              .plans = std::move(plans),
                              .compilers = compilers,
                              .compile_while_measuring = device.facts().target != Target::kCpu};
  ATT_TRY(const DeviceLock lock, DeviceLock::acquire(device.unit(), [&] {
            return progress({.state = TuneState::kWaiting});
          }));
  using std::chrono::steady_clock;
  const Clock clock = [began = steady_clock::now()] {
    return std::chrono::duration<double>(steady_clock::now() - began).count();
  };
  return search(problem, executor, store, options, clock, [&](TuneProgress now) {
    now.data = data.label;
    return progress(now);
  });
}

Result<TuneResult> tune(const AttentionSpec& spec, const ProblemShape& shape, Device& device,
                        std::span<Compiler* const> compilers, Store& store,
                        const TuneOptions& options, const TuneObserver& progress) {
  LocalExecutor executor(spec, shape, device, compilers, &store, fresh_seed(), options.pass);
  return run_search(spec, shape, device, store, executor, static_cast<int>(compilers.size()),
                    options, progress);
}

}  // namespace attune
