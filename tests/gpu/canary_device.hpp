// A device whose every buffer is followed by bytes that nobody may touch.
#pragma once

#include <map>

#include "runtime/device/device.hpp"

namespace attune::gpu_test {

// Passes everything on to `device`. One thread at a time.
class CanaryDevice final : public Device {
 public:
  explicit CanaryDevice(Device& device) : device_(device) {}

  // Empty, or which living buffer was written behind. Synchronises.
  std::string damage();

  const DeviceFacts& facts() const override { return device_.facts(); }
  std::string identity() const override { return device_.identity(); }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    return device_.load(spec, plan, image);
  }
  Result<void*> allocate(std::size_t bytes) override;
  void free(void* pointer) override;
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override {
    return device_.copy_to_device(to, from, bytes);
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    return device_.copy_to_host(to, from, bytes);
  }
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    return device_.fill(to, byte, bytes);
  }
  Status synchronize() override { return device_.synchronize(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override {
    return device_.time_us(work);
  }

 private:
  Device& device_;
  std::map<void*, std::size_t> buffers_;  // bytes without the canary
};

}  // namespace attune::gpu_test
