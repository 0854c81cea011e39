#include "tuner/host/device_name.hpp"

#include <fmt/format.h>

#include <array>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/nvml.hpp"

namespace attune {

// A host may have named it, or only have a context of it. A worker has the same environment, and so
// the same order of devices.
Result<std::string> device_name(const Device& device) {
  if (device.facts().target == Target::kCpu) return std::string("cpu");
  ATT_TRY(const CudaApi* api, cuda_api());
  ATT_TRY(const int count, cuda_device_count());
  const std::string unit = device.unit();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice handle = 0;
    ATT_CHECK(cuda_status(*api, api->device_get(&handle, ordinal), "cuDeviceGet"));
    std::array<char, 32> bus_id{};
    ATT_CHECK(cuda_status(
        *api,
        api->device_get_pci_bus_id(bus_id.data(), static_cast<int>(bus_id.size()) - 1, handle),
        "cuDeviceGetPCIBusId"));
    if (unit == bus_id.data() || unit == nvidia_uuid(bus_id.data()))
      return fmt::format("cuda:{}", ordinal);
  }
  return Error{.kind = ErrorKind::kUnavailable,
               .id = "gpu-missing",
               .message = fmt::format("the driver lists no {}", unit)};
}

}  // namespace attune
