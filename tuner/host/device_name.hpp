// What a worker calls the device that a host has open.
#pragma once

#include <string>

#include "runtime/device/device.hpp"

namespace attune {

// As open_device() takes it: "cuda:1", "cpu". kUnavailable where the driver no longer knows it.
Result<std::string> device_name(const Device& device);

}  // namespace attune
