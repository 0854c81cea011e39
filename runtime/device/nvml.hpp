// The management library: what the driver is called, and how warm, fast and throttled a GPU is.
#pragma once

#include <string>

namespace attune {

// "580.159.04"; empty without NVML.
std::string nvidia_driver_version();

// "GPU-8f1b..."; empty without NVML.
std::string nvidia_uuid(const std::string& pci_bus_id);

// JSON of the GPU's clocks (MHz), temperature (C), power (W) and throttle reasons (NVML's bit mask)
// at this moment; members that NVML does not answer are left out; "{}" without NVML. Thread-safe.
std::string nvidia_conditions(const std::string& pci_bus_id);

}  // namespace attune
