// Reads a GPU's memory in the order of a stream.
#pragma once

#include <span>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"

namespace attune {

// Device::copy_to_host_behind() in the stream's context, which is current. When it returns nothing
// is on its way to the host any more, whatever failed. Thread-safe.
Status copy_behind(const CudaApi& api, CUstream stream, std::span<const HostCopy> copies);

}  // namespace attune
