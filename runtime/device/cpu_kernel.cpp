#include "runtime/device/cpu_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

// Up to so many items a thread, the longest first whatever head they are of; beyond it heads go one
// after the other, because their items share K and V in the caches and the last ones are short
// enough to even out.
constexpr int kItemsForGlobalOrder = 8;

struct Run {
  void (*run_item)(const att::LaunchParams*, int, void*);
  const att::LaunchParams* params;
  const int* order;
  std::size_t scratch_bytes;
  std::atomic<bool> out_of_memory{false};
};

void run_one(void* context, int i) {
  Run& run = *static_cast<Run*>(context);
  void* scratch = run.scratch_bytes == 0 ? nullptr : thread_scratch(run.scratch_bytes);
  if (scratch == nullptr && run.scratch_bytes != 0) {
    run.out_of_memory = true;
    return;
  }
  run.run_item(run.params, run.order[i], scratch);
}

}  // namespace

Result<std::unique_ptr<LoadedKernel>> CpuKernel::load(const AttLlvmApi& module, CpuPool& pool,
                                                      const AttentionSpec& spec,
                                                      const LaunchRecipe& recipe,
                                                      std::span<const std::uint8_t> image) {
  std::unique_ptr<CpuKernel> kernel(new CpuKernel(module, pool, spec, recipe));
  ATT_CHECK(kernel->open(image));
  return std::unique_ptr<LoadedKernel>(std::move(kernel));
}

CpuKernel::~CpuKernel() {
  if (handle_ != nullptr) module_.unload(handle_);
}

Status CpuKernel::open(std::span<const std::uint8_t> image) {
  std::vector<std::string> names;  // two a launch
  for (const Launch& launch : recipe_.launches) {
    names.push_back(launch.symbol);
    names.push_back(launch.symbol + "_work");
  }
  std::vector<const char*> symbols;
  for (const std::string& name : names) symbols.push_back(name.c_str());
  std::vector<void*> addresses(names.size());
  AttLlvmBuffer log{nullptr, 0};
  handle_ = module_.load(image.data(), image.size(), symbols.data(), addresses.data(),
                         symbols.size(), &log);
  if (handle_ == nullptr) {
    Error error{.id = "cpu-load",
                .message = fmt::format("the object of {} could not be linked", recipe_.symbol),
                .detail = std::string(static_cast<const char*>(log.data), log.size)};
    module_.release(&log);
    return error;
  }
  module_.release(&log);
  for (std::size_t i = 0; i < addresses.size(); i += 2) {
    functions_.push_back({reinterpret_cast<decltype(Functions::run_item)>(addresses[i]),
                          reinterpret_cast<decltype(Functions::work)>(addresses[i + 1])});
  }
  return ok_status();
}

std::size_t CpuKernel::workspace_bytes(const ProblemShape& shape) const {
  return attune::workspace_bytes(spec_, recipe_, shape);
}

void CpuKernel::order_items(const att::LaunchParams& params, const att::CpuWork& work, int items,
                            std::vector<int>& order) const {
  order.resize(static_cast<std::size_t>(items));
  std::iota(order.begin(), order.end(), 0);
  if (work.weight == nullptr || threads() == 1) return;
  thread_local std::vector<int> weights;
  weights.resize(order.size());
  for (int item = 0; item < items; ++item) {
    weights[static_cast<std::size_t>(item)] = work.weight(&params, item);
  }
  const auto longer = [](int a, int b) {
    const int weight_a = weights[static_cast<std::size_t>(a)];
    const int weight_b = weights[static_cast<std::size_t>(b)];
    return weight_a != weight_b ? weight_a > weight_b : a < b;
  };
  const bool global = items <= kItemsForGlobalOrder * threads();
  const int group = global ? items : work.items_per_head;
  for (int first = 0; first < items; first += group) {
    std::sort(order.begin() + first, order.begin() + std::min(first + group, items), longer);
  }
}

Status CpuKernel::launch(const att::LaunchParams& params, void* workspace, StreamHandle) const {
  att::LaunchParams completed = params;
  ATT_CHECK(place_workspace(spec_, recipe_, workspace, &completed));
  const ProblemShape shape = shape_of(params);
  for (std::size_t i = 0; i < recipe_.launches.size(); ++i) {
    for (const WorkspaceRegion::Content content : recipe_.launches[i].zeroed) {
      const PlacedRegion region = placed_region(spec_, recipe_, content, shape, workspace);
      if (region.bytes != 0) std::memset(region.data, 0, region.bytes);
    }
    ATT_CHECK(launch_one(recipe_.launches[i], functions_[i], completed));
  }
  return ok_status();
}

Status CpuKernel::launch_one(const Launch& launch, const Functions& functions,
                             const att::LaunchParams& params) const {
  // One that an int can number.
  ATT_TRY(const unsigned count,
          grid_size(launch, item_count(spec_, recipe_, launch, shape_of(params)), 1));
  const int items = static_cast<int>(count);
  att::CpuWork work{};
  functions.work(&params, &work);
  // Kept by the thread: a launch allocates only when it is the largest so far.
  thread_local std::vector<int> order;
  order_items(params, work, items, order);
  Run run{.run_item = functions.run_item,
          .params = &params,
          .order = order.data(),
          .scratch_bytes = static_cast<std::size_t>(work.scratch_bytes)};
  pool_.run(items, &run_one, &run, threads());
  if (run.out_of_memory) {
    return Error{.id = "out-of-memory", .message = "no memory for a CPU kernel's scratch"};
  }
  return ok_status();
}

}  // namespace attune
