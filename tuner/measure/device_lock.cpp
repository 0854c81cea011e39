#include "tuner/measure/device_lock.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>

namespace attune {
namespace {

constexpr std::chrono::milliseconds kRetry{100};

}  // namespace

Result<DeviceLock> DeviceLock::acquire(const std::string& unit,
                                       const std::function<bool()>& go_on) {
  if (unit.empty()) return DeviceLock(-1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return DeviceLock(-1);
  // An abstract address (its first byte is zero): one for all users and directories of the machine,
  // without a file that could be left behind or belong to somebody else.
  const std::string name = "attune-" + unit;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::copy_n(name.begin(), length, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  while (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 && errno == EADDRINUSE) {
    if (!go_on()) {
      close(fd);
      return Error{.id = "device-busy",
                   .message = fmt::format("another tuner measures on this device ({})", unit)};
    }
    std::this_thread::sleep_for(kRetry);
  }
  return DeviceLock(fd);
}

DeviceLock::~DeviceLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace attune
