// One process a shard of a sweep: two would tune the same problems into the same files.
#pragma once

#include <string>

#include "generator/support/result.hpp"
#include "tuner/sweep/manifest.hpp"

namespace attune {

// Held while the object lives; the system gives it back when the process dies, on a network
// filesystem too. The file that bears it stays.
class ShardLock {
 public:
  // "sweep-shard-busy" when another process, or another ShardLock, holds it. Where files cannot be
  // locked there is none to hold, and it is granted.
  static Result<ShardLock> acquire(const std::string& directory, const Shard& shard);
  ShardLock(ShardLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  ShardLock& operator=(ShardLock&&) = delete;
  ~ShardLock();

 private:
  explicit ShardLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace attune
