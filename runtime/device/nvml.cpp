#include "runtime/device/nvml.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <vector>

#include "runtime/support/dynamic_library.hpp"

namespace attune {
namespace {

// Declarations after NVIDIA's nvml.h.
using NvmlDevice = struct nvmlDevice_st*;
constexpr int kNvmlSuccess = 0;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kTemperatureGpu = 0;

struct NvmlApi {
  int (*init)();
  int (*driver_version)(char*, unsigned length);
  int (*handle_by_pci_bus_id)(const char*, NvmlDevice*);
  int (*uuid)(NvmlDevice, char*, unsigned length);
  int (*clock_info)(NvmlDevice, int type, unsigned* mhz);
  int (*temperature)(NvmlDevice, int sensor, unsigned* celsius);
  int (*power_usage)(NvmlDevice, unsigned* milliwatts);
  int (*throttle_reasons)(NvmlDevice, unsigned long long*);
};

std::optional<NvmlApi> open_nvml() {
  const auto library =
      DynamicLibrary::open({"libnvidia-ml.so.1"}, "nvml-missing", "NVML", "install the driver");
  if (!library.ok()) return std::nullopt;
  NvmlApi api{};
  const bool complete =
      library->bind(api.init, "nvmlInit_v2") &&
      library->bind(api.driver_version, "nvmlSystemGetDriverVersion") &&
      library->bind(api.handle_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
      library->bind(api.uuid, "nvmlDeviceGetUUID") &&
      library->bind(api.clock_info, "nvmlDeviceGetClockInfo") &&
      library->bind(api.temperature, "nvmlDeviceGetTemperature") &&
      library->bind(api.power_usage, "nvmlDeviceGetPowerUsage") &&
      library->bind(api.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (!complete || api.init() != kNvmlSuccess) return std::nullopt;
  return api;
}

const std::optional<NvmlApi>& api() {
  static const std::optional<NvmlApi> opened = open_nvml();
  return opened;
}

}  // namespace

std::string nvidia_driver_version() {
  std::array<char, 96> text{};
  if (!api() || api()->driver_version(text.data(), text.size() - 1) != kNvmlSuccess) return {};
  return text.data();
}

std::string nvidia_uuid(const std::string& pci_bus_id) {
  NvmlDevice device = nullptr;
  std::array<char, 96> text{};
  if (!api() || api()->handle_by_pci_bus_id(pci_bus_id.c_str(), &device) != kNvmlSuccess ||
      api()->uuid(device, text.data(), text.size() - 1) != kNvmlSuccess) {
    return {};
  }
  return text.data();
}

std::string nvidia_conditions(const std::string& pci_bus_id) {
  NvmlDevice device = nullptr;
  if (!api() || api()->handle_by_pci_bus_id(pci_bus_id.c_str(), &device) != kNvmlSuccess) {
    return "{}";
  }
  std::vector<std::string> members;
  unsigned value = 0;
  if (api()->clock_info(device, kClockSm, &value) == kNvmlSuccess) {
    members.push_back(fmt::format("\"sm_mhz\": {}", value));
  }
  if (api()->clock_info(device, kClockMemory, &value) == kNvmlSuccess) {
    members.push_back(fmt::format("\"memory_mhz\": {}", value));
  }
  if (api()->temperature(device, kTemperatureGpu, &value) == kNvmlSuccess) {
    members.push_back(fmt::format("\"temperature_c\": {}", value));
  }
  if (api()->power_usage(device, &value) == kNvmlSuccess) {
    members.push_back(fmt::format("\"power_w\": {:.1f}", value / 1000.0));
  }
  unsigned long long reasons = 0;
  if (api()->throttle_reasons(device, &reasons) == kNvmlSuccess) {
    members.push_back(fmt::format("\"throttle_reasons\": {}", reasons));
  }
  return fmt::format("{{{}}}", fmt::join(members, ", "));
}

}  // namespace attune
