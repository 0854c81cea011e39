// A cubin loaded on a GPU, and its launch.
#pragma once

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"

namespace attune {

class CudaKernel final : public LoadedKernel {
 public:
  static Result<std::unique_ptr<LoadedKernel>> load(const CudaApi& api, CUdevice device,
                                                    CUcontext context, int processor_count,
                                                    const AttentionSpec& spec,
                                                    const LaunchRecipe& recipe,
                                                    std::span<const std::uint8_t> image);
  ~CudaKernel() override;

  Status launch(const att::LaunchParams& params, void* workspace,
                StreamHandle stream) const override;
  std::size_t workspace_bytes(const ProblemShape& shape) const override;

 private:
  CudaKernel(const CudaApi& api, CUcontext context, int processor_count, const AttentionSpec& spec,
             LaunchRecipe recipe)
      : api_(api),
        context_(context),
        processor_count_(processor_count),
        spec_(spec),
        recipe_(std::move(recipe)) {}
  struct Functions {
    CUfunction main = nullptr, otherwise = nullptr;
  };
  Status open(CUdevice device, std::span<const std::uint8_t> image);
  Status launch_in_context(const att::LaunchParams& params, void* workspace, CUstream stream) const;
  Status launch_all(const att::LaunchParams& params, void* workspace, CUstream stream) const;
  Result<unsigned> grid_of(const Launch& launch, const ProblemShape& shape) const;
  Result<CUfunction> function(const Launch& launch, const std::string& symbol,
                              CUdevice device) const;
  Status launch_one(const Launch& launch, const Functions& functions,
                    const att::LaunchParams& params, const ProblemShape& shape,
                    CUstream stream) const;

  const CudaApi& api_;
  const CUcontext context_;
  const int processor_count_;
  const AttentionSpec spec_;
  const LaunchRecipe recipe_;
  CUlibrary library_ = nullptr;
  bool may_overlap_ = false;          // a launch and the one in front of it
  std::vector<Functions> functions_;  // of the recipe's launches
};

}  // namespace attune
