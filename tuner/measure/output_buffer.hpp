// Device memory that kernels write, with a canary behind it.
#pragma once

#include <string_view>

#include "tuner/measure/device_buffer.hpp"

namespace attune {

// NaN in every dtype.
inline constexpr std::uint8_t kPoison = 0xff;

// Not thread-safe.
class OutputBuffer {
 public:
  OutputBuffer() = default;
  static Result<OutputBuffer> make(Device& device, std::size_t bytes);
  void* data() const { return buffer_.data(); }
  std::size_t bytes() const { return bytes_; }  // without the canary
  // Fills it with NaN, the canary too.
  Status poison();
  // After synchronising: fails with "candidate-miscompute" when the canary died. `name`: of the
  // output.
  Status check_canary(std::string_view name) const;

 private:
  Device* device_ = nullptr;
  DeviceBuffer buffer_;
  std::size_t bytes_ = 0;
};

}  // namespace attune
