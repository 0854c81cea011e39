// A cubin with one kernel, loaded on a GPU, and its launch.
#pragma once

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"

namespace attune {

class CudaFunction final : public LoadedFunction {
 public:
  static Result<std::unique_ptr<LoadedFunction>> load(const CudaApi& api, CUcontext context,
                                                      const FunctionRecipe& recipe,
                                                      std::span<const std::uint8_t> image);
  ~CudaFunction() override;
  CudaFunction(const CudaFunction&) = delete;
  CudaFunction& operator=(const CudaFunction&) = delete;

  Status launch(const void* params, int items, StreamHandle stream) const override;

 private:
  CudaFunction(const CudaApi& api, CUcontext context, int threads)
      : api_(api), context_(context), threads_(threads) {}
  Status open(const std::string& symbol, std::span<const std::uint8_t> image);
  Status launch_in_context(const void* params, int items, CUstream stream) const;

  const CudaApi& api_;
  const CUcontext context_;
  const int threads_;
  CUlibrary library_ = nullptr;
  CUfunction function_ = nullptr;
};

}  // namespace attune
