#include "tuner/measure/device_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <thread>

namespace attune {
namespace {

constexpr std::chrono::milliseconds kRetry{100};

}  // namespace

Result<DeviceLock> DeviceLock::acquire(const std::string& directory, const std::string& unit,
                                       const std::function<bool()>& go_on) {
  if (unit.empty()) return DeviceLock(-1);
  std::string name;
  for (const char c : unit)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  const std::string path = fmt::format("{}/gpu-{}.lock", directory.empty() ? "." : directory, name);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return DeviceLock(-1);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
    if (!go_on()) {
      close(fd);
      return Error{
          .id = "device-busy",
          .message = fmt::format("another tuner measures on this GPU (it holds `{}`)", path)};
    }
    std::this_thread::sleep_for(kRetry);
  }
  return DeviceLock(fd);
}

DeviceLock::~DeviceLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace attune
