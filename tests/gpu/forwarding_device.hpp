// A device that passes everything on to another, for tests that change a part of it.
#pragma once

#include "runtime/device/device.hpp"

namespace attune::gpu_test {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& device) : device_(device) {}

  const DeviceFacts& facts() const override { return device_.facts(); }
  std::string identity() const override { return device_.identity(); }
  Result<std::unique_ptr<LoadedKernel>> load(const AttentionSpec& spec, const KernelPlan& plan,
                                             std::span<const std::uint8_t> image) override {
    return device_.load(spec, plan, image);
  }
  Result<std::unique_ptr<LoadedKernel>> load_recipe(const AttentionSpec& spec,
                                                    const LaunchRecipe& recipe,
                                                    std::span<const std::uint8_t> image) override {
    return device_.load_recipe(spec, recipe, image);
  }
  Result<void*> allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  void free(void* pointer) override { device_.free(pointer); }
  Status copy_to_device(void* to, const void* from, std::size_t bytes) override {
    return device_.copy_to_device(to, from, bytes);
  }
  Status copy_to_host(void* to, const void* from, std::size_t bytes) override {
    return device_.copy_to_host(to, from, bytes);
  }
  Status copy_to_host_behind(StreamHandle stream, std::span<const HostCopy> copies) override {
    return device_.copy_to_host_behind(stream, copies);
  }
  Status fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    return device_.fill(to, byte, bytes);
  }
  Status synchronize() override { return device_.synchronize(); }
  Result<double> time_us(const std::function<Status(StreamHandle)>& work) override {
    return device_.time_us(work);
  }

 protected:
  Device& device_;
};

}  // namespace attune::gpu_test
