#include "tests/gpu/canary_device.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::gpu_test {
namespace {

// A tile's worth of rows: what a kernel that forgets a bound writes lands in it.
constexpr std::size_t kCanaryBytes = 4096;
constexpr std::uint8_t kCanary = 0xA5;

}  // namespace

Result<void*> CanaryDevice::allocate(std::size_t bytes) {
  ATT_TRY(void* data, device_.allocate(bytes + kCanaryBytes));
  buffers_[data] = bytes;
  ATT_CHECK(device_.fill(static_cast<std::uint8_t*>(data) + bytes, kCanary, kCanaryBytes));
  return data;
}

void CanaryDevice::free(void* pointer) {
  buffers_.erase(pointer);
  device_.free(pointer);
}

std::string CanaryDevice::damage() {
  if (Status status = device_.synchronize(); !status.ok()) return render(status.error());
  std::vector<std::uint8_t> canary(kCanaryBytes);
  for (const auto& [data, bytes] : buffers_) {
    const auto* behind = static_cast<const std::uint8_t*>(data) + bytes;
    if (Status status = device_.copy_to_host(canary.data(), behind, canary.size()); !status.ok()) {
      return render(status.error());
    }
    const auto hit = std::ranges::find_if(canary, [](std::uint8_t b) { return b != kCanary; });
    if (hit != canary.end()) {
      return fmt::format("byte {} behind a buffer of {} bytes was written", hit - canary.begin(),
                         bytes);
    }
  }
  return {};
}

}  // namespace attune::gpu_test
