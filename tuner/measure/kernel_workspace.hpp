// The device memory that the kernels of one problem work in.
#pragma once

#include "tuner/measure/device_buffer.hpp"

namespace attune {

// Kept, and grows as kernels need. The device must outlive it. Not thread-safe.
class KernelWorkspace {
 public:
  // What new memory holds.
  enum class Fresh { kAnything, kPoison };

  KernelWorkspace(Device& device, const ProblemShape& shape, Fresh fresh)
      : device_(device), shape_(shape), fresh_(fresh) {}
  // Makes room for the kernel's, so that launch() allocates nothing.
  Status prepare(const LoadedKernel& kernel);
  Status launch(const LoadedKernel& kernel, const att::LaunchParams& params, StreamHandle stream);
  // Fills it with NaN.
  Status poison();

 private:
  Device& device_;
  const ProblemShape shape_;
  const Fresh fresh_;
  DeviceBuffer memory_;
};

}  // namespace attune
