// An object linked into this process, and its launch over the pool.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/device/cpu_pool.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/llvm_module/api.h"
#include "templates/cpu/launch.h"

namespace attune {

class CpuKernel final : public LoadedKernel {
 public:
  static Result<std::unique_ptr<LoadedKernel>> load(const AttLlvmApi& module, CpuPool& pool,
                                                    const AttentionSpec& spec,
                                                    const LaunchRecipe& recipe,
                                                    std::span<const std::uint8_t> image);
  ~CpuKernel() override;

  // Runs at once, on the pool and the calling thread.
  Status launch(const att::LaunchParams& params, void* workspace,
                StreamHandle stream) const override;
  std::size_t workspace_bytes(const ProblemShape& shape) const override;

 private:
  struct Functions {
    void (*run_item)(const att::LaunchParams*, int item, void* scratch) = nullptr;
    void (*work)(const att::LaunchParams*, att::CpuWork*) = nullptr;
  };

  CpuKernel(const AttLlvmApi& module, CpuPool& pool, const AttentionSpec& spec, LaunchRecipe recipe)
      : module_(module), pool_(pool), spec_(spec), recipe_(std::move(recipe)) {}
  Status open(std::span<const std::uint8_t> image);
  int threads() const { return std::max(1, pool_.threads() / recipe_.thread_share); }
  Status launch_one(const Launch& launch, const Functions& functions,
                    const att::LaunchParams& params) const;
  // Item numbers in the order in which to start them.
  void order_items(const att::LaunchParams& params, const att::CpuWork& work, int items,
                   std::vector<int>& order) const;

  const AttLlvmApi& module_;
  CpuPool& pool_;
  const AttentionSpec spec_;
  const LaunchRecipe recipe_;
  void* handle_ = nullptr;
  std::vector<Functions> functions_;  // of the recipe's launches
};

}  // namespace attune
