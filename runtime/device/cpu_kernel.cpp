#include "runtime/device/cpu_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/device/cpu_ranges.hpp"
#include "runtime/device/workspace.hpp"

namespace attune {
namespace {

// Up to so many items a thread, the longest first whatever head they are of; beyond it heads go one
// after the other, because their items share K and V in the caches and the last ones are short
// enough to even out.
constexpr int kItemsForGlobalOrder = 8;

struct Run {
  void (*run_item)(const att::ForwardParams*, int, void*);
  const att::ForwardParams* params;
  const int* order;
  std::size_t scratch_bytes;
  std::atomic<bool> out_of_memory{false};
};

void run_one(void* context, int i) {
  Run& run = *static_cast<Run*>(context);
  void* scratch = thread_scratch(run.scratch_bytes);
  if (scratch == nullptr) {
    run.out_of_memory = true;
    return;
  }
  run.run_item(run.params, run.order[i], scratch);
}

}  // namespace

Result<std::unique_ptr<LoadedKernel>> CpuKernel::load(const AttLlvmApi& module, CpuPool& pool,
                                                      const AttentionSpec& spec,
                                                      const KernelPlan& plan,
                                                      std::span<const std::uint8_t> image) {
  std::unique_ptr<CpuKernel> kernel(new CpuKernel(module, pool, spec, launch_recipe(spec, plan)));
  ATT_CHECK(kernel->open(image));
  return std::unique_ptr<LoadedKernel>(std::move(kernel));
}

CpuKernel::~CpuKernel() {
  if (handle_ != nullptr) module_.unload(handle_);
}

Status CpuKernel::open(std::span<const std::uint8_t> image) {
  const std::string names[] = {recipe_.symbol, recipe_.symbol + "_work",
                               recipe_.symbol + "_weight"};
  const char* symbols[] = {names[0].c_str(), names[1].c_str(), names[2].c_str()};
  void* addresses[3] = {};
  AttLlvmBuffer log{nullptr, 0};
  handle_ = module_.load(image.data(), image.size(), symbols, addresses, std::size(symbols), &log);
  if (handle_ == nullptr) {
    Error error{.id = "cpu-load",
                .message = fmt::format("the object of {} could not be linked", recipe_.symbol),
                .detail = std::string(static_cast<const char*>(log.data), log.size)};
    module_.release(&log);
    return error;
  }
  module_.release(&log);
  run_item_ = reinterpret_cast<ItemFunction>(addresses[0]);
  work_ = reinterpret_cast<WorkFunction>(addresses[1]);
  weight_ = reinterpret_cast<WeightFunction>(addresses[2]);
  return ok_status();
}

std::size_t CpuKernel::workspace_bytes(const ProblemShape& shape) const {
  return attune::workspace_bytes(spec_, recipe_, shape);
}

void CpuKernel::order_items(const att::ForwardParams& params, const att::CpuWork& work,
                            std::vector<int>& order) const {
  order.resize(static_cast<std::size_t>(work.items));
  std::iota(order.begin(), order.end(), 0);
  if (spec_.mask == nullptr || threads() == 1) return;
  thread_local std::vector<int> weights;
  weights.resize(order.size());
  for (int item = 0; item < work.items; ++item) {
    weights[static_cast<std::size_t>(item)] = weight_(&params, item);
  }
  const auto longer = [](int a, int b) {
    const int weight_a = weights[static_cast<std::size_t>(a)];
    const int weight_b = weights[static_cast<std::size_t>(b)];
    return weight_a != weight_b ? weight_a > weight_b : a < b;
  };
  const bool global = work.items <= kItemsForGlobalOrder * threads();
  const int group = global ? work.items : work.items_per_head;
  for (int first = 0; first < work.items; first += group) {
    std::sort(order.begin() + first, order.begin() + std::min(first + group, work.items), longer);
  }
}

Status CpuKernel::launch(const att::ForwardParams& params, void* workspace, StreamHandle) const {
  att::ForwardParams completed = params;
  if (!recipe_.range_slots.empty()) {
    if (workspace == nullptr) {
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "workspace-missing",
                   .message = "this kernel needs a workspace and got none",
                   .hint = "allocate workspace_bytes(shape) bytes"};
    }
    auto* next = static_cast<std::byte*>(workspace);
    const ProblemShape shape = shape_of(params);
    for (const int slot : recipe_.range_slots) {
      const auto& declaration = spec_.environment.tensors[static_cast<std::size_t>(slot)];
      completed.tensors[slot].block_ranges = next;
      const RangeGeometry geometry = range_geometry(declaration, shape);
      compute_block_ranges(completed.tensors[slot], declaration.type, geometry);
      next += geometry.bytes;
    }
  }
  att::CpuWork work{};
  work_(&completed, &work);
  // Kept by the thread: a launch allocates only when it is the largest so far.
  thread_local std::vector<int> order;
  order_items(completed, work, order);
  Run run{.run_item = run_item_,
          .params = &completed,
          .order = order.data(),
          .scratch_bytes = static_cast<std::size_t>(work.scratch_bytes)};
  pool_.run(work.items, &run_one, &run, threads());
  if (run.out_of_memory) {
    return Error{.id = "out-of-memory", .message = "no memory for a CPU kernel's scratch"};
  }
  return ok_status();
}

}  // namespace attune
