#include "tuner/measure/output_buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tuner/executor.hpp"

namespace attune {
namespace {
constexpr std::size_t kCanaryBytes = 256;
}

Result<OutputBuffer> OutputBuffer::make(Device& device, std::size_t bytes) {
  OutputBuffer output;
  ATT_TRY(output.buffer_, DeviceBuffer::make(device, bytes + kCanaryBytes));
  output.device_ = &device;
  output.bytes_ = bytes;
  ATT_CHECK(output.poison());
  return output;
}

Status OutputBuffer::poison() {
  if (device_ == nullptr) return ok_status();
  return device_->fill(buffer_.data(), kPoison, buffer_.bytes());
}

Status OutputBuffer::check_canary(std::string_view name) const {
  if (device_ == nullptr) return ok_status();
  std::array<std::uint8_t, kCanaryBytes> canary{};
  ATT_CHECK(device_->copy_to_host(canary.data(), static_cast<std::byte*>(buffer_.data()) + bytes_,
                                  kCanaryBytes));
  if (std::ranges::all_of(canary, [](std::uint8_t byte) { return byte == kPoison; }))
    return ok_status();
  return candidate_error("miscompute", fmt::format("writes behind {}", name));
}

}  // namespace attune
