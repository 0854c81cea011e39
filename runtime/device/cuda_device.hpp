// A GPU through the CUDA driver.
#pragma once

#include <string>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/rows_outside.hpp"

namespace attune {

// Every member makes the device's context current for its own duration, so any thread may call it.
class CudaDevice final : public Device {
 public:
  // `owned`: the context is the device's primary one and is released at the end.
  static Result<std::unique_ptr<Device>> open(const CudaApi& api, CUdevice device,
                                              CUcontext context, bool owned);
  ~CudaDevice() override;

  const DeviceFacts& facts() const override { return facts_; }
  std::string identity() const override { return identity_; }
  std::string unit() const override;
  std::shared_ptr<void> spare_captures() override;
  std::string conditions() const override;
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override;
  Result<std::unique_ptr<LoadedKernel>> load_recipe(const AttentionSpec& spec,
                                                    const LaunchRecipe& recipe,
                                                    std::span<const std::uint8_t> image) override;
  Result<std::unique_ptr<LoadedFunction>> load_function(
      const FunctionRecipe& recipe, std::span<const std::uint8_t> image) override;
  Status fill_rows_outside(const RowsOutside& rows, StreamHandle stream) override;
  Result<void*> allocate(std::size_t bytes) override;
  void free(void* pointer) override;
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override;
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override;
  Status copy_to_host_behind(StreamHandle stream, std::span<const HostCopy> copies) override;
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override;
  Status synchronize() override;
  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override;

 private:
  CudaDevice(const CudaApi& api, CUdevice device, CUcontext context, bool owned)
      : api_(api),
        device_(device),
        context_(context),
        owned_(owned),
        rows_outside_(std::make_unique<CudaRowsOutside>(api, context)) {}
  Status read_facts();

  const CudaApi& api_;
  const CUdevice device_;
  const CUcontext context_;
  const bool owned_;
  std::unique_ptr<CudaRowsOutside> rows_outside_;
  DeviceFacts facts_;
  std::string identity_;
  std::string pci_bus_id_;
};

}  // namespace attune
