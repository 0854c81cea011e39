// An object linked into this process, and its launch over the pool.
#pragma once

#include <algorithm>

#include "runtime/device/cpu_pool.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/llvm_module/api.h"
#include "templates/cpu/launch.h"

namespace attune {

class CpuKernel final : public LoadedKernel {
 public:
  static Result<std::unique_ptr<LoadedKernel>> load(const AttLlvmApi& module, CpuPool& pool,
                                                    const AttentionSpec& spec,
                                                    const KernelPlan& plan,
                                                    std::span<const std::uint8_t> image);
  ~CpuKernel() override;

  // Runs at once, on the pool and the calling thread.
  Status launch(const att::ForwardParams& params, void* workspace,
                StreamHandle stream) const override;
  std::size_t workspace_bytes(const ProblemShape& shape) const override;

 private:
  using WorkFunction = void (*)(const att::ForwardParams*, att::CpuWork*);
  using WeightFunction = int (*)(const att::ForwardParams*, int item);
  using ItemFunction = void (*)(const att::ForwardParams*, int item, void* scratch);

  CpuKernel(const AttLlvmApi& module, CpuPool& pool, const AttentionSpec& spec, LaunchRecipe recipe)
      : module_(module), pool_(pool), spec_(spec), recipe_(std::move(recipe)) {}
  Status open(std::span<const std::uint8_t> image);
  int threads() const { return std::max(1, pool_.threads() / recipe_.thread_share); }
  // Item numbers in the order in which to start them.
  void order_items(const att::ForwardParams& params, const att::CpuWork& work,
                   std::vector<int>& order) const;

  const AttLlvmApi& module_;
  CpuPool& pool_;
  const AttentionSpec spec_;
  const LaunchRecipe recipe_;
  void* handle_ = nullptr;
  ItemFunction run_item_ = nullptr;
  WorkFunction work_ = nullptr;
  WeightFunction weight_ = nullptr;
};

}  // namespace attune
