// A device whose every buffer is followed by bytes that nobody may touch.
#pragma once

#include <map>

#include "tests/gpu/forwarding_device.hpp"

namespace attune::gpu_test {

// Passes everything on to `device`. One thread at a time.
class CanaryDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  // Empty, or which living buffer was written behind. Synchronises.
  std::string damage();

  Result<void*> allocate(std::size_t bytes) override;
  void free(void* pointer) override;

 private:
  std::map<void*, std::size_t> buffers_;  // bytes without the canary
};

}  // namespace attune::gpu_test
