// Memory of a device that frees itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/device/device.hpp"

namespace attune {

// Not thread-safe. The device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> make(Device& device, std::size_t bytes) {
    DeviceBuffer buffer;
    ATT_TRY(buffer.data_, device.allocate(std::max<std::size_t>(bytes, 1)));
    buffer.device_ = &device;
    buffer.bytes_ = bytes;
    return buffer;
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) device_->free(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace attune
