#include "tuner/sweep/shard_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "tuner/sweep/files.hpp"

namespace attune {

Result<ShardLock> ShardLock::acquire(const std::string& directory, const Shard& shard) {
  const std::string path = sweep_files::lock(directory, shard);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ShardLock(-1);
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  // Of this open file, not of the process: the workers that it starts do not keep it.
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0) return ShardLock(fd);
  const bool busy = errno == EAGAIN || errno == EACCES;
  close(fd);
  if (!busy) return ShardLock(-1);
  return Error{
      .id = "sweep-shard-busy",
      .message = fmt::format("another process runs shard {} of `{}`", to_string(shard), directory),
      .hint = "`attune sweep status` shows how far it is"};
}

ShardLock::~ShardLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace attune
