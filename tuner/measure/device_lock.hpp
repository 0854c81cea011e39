// One tuner a device, whatever cache file it writes to: two that measure at once measure each
// other.
#pragma once

#include <functional>
#include <string>

#include "generator/support/result.hpp"

namespace attune {

// Held while the object lives; the system gives it back when the process dies.
class DeviceLock {
 public:
  // `unit` names the very device (Device::unit()); empty: nothing to lock. Waits as long as `go_on`
  // says so, which is asked several times a second; "device-busy" when it says no. Holds among the
  // processes of one network namespace: of a host, or of one of its containers.
  static Result<DeviceLock> acquire(const std::string& unit, const std::function<bool()>& go_on);
  DeviceLock(DeviceLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  DeviceLock& operator=(DeviceLock&&) = delete;
  ~DeviceLock();

 private:
  explicit DeviceLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace attune
