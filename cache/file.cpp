#include "cache/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "cache/keys.hpp"

namespace attune::cache {
namespace {

Error io_error(std::string message) {
  return {.kind = ErrorKind::kFailed,
          .id = "cache-io",
          .message = message + ": " + std::generic_category().message(errno)};
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void sync_directory(const std::string& path) {
  const int fd = open(parent_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

// Serialises set_aside and the fallback of publish among processes. Where flock is missing (some
// network filesystems) the renames stay atomic, only two processes may both set a file aside.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    fd_ = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ >= 0) flock(fd_, LOCK_EX);
  }
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

bool exists(const std::string& path) { return identify(path).has_value(); }

}  // namespace

std::optional<FileIdentity> identify(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

bool is_network_filesystem(std::uint32_t magic) {
  // statfs(2) and linux/magic.h; the last five are from their projects' sources.
  constexpr std::array<std::uint32_t, 14> kNetwork{
      0x6969,      // NFS
      0x517b,      // SMB
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB2
      0x564c,      // NCP
      0x5346414f,  // AFS
      0x73757245,  // Coda
      0x00c36400,  // Ceph
      0x01021997,  // 9p
      0x65735546,  // FUSE
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x19830326,  // BeeGFS
      0x7461636f,  // OCFS2
  };
  return std::ranges::find(kNetwork, magic) != kNetwork.end();
}

bool on_network_filesystem(const std::string& path) {
  struct statfs info{};
  if (statfs(path.c_str(), &info) != 0 && statfs(parent_of(path).c_str(), &info) != 0) return false;
  return is_network_filesystem(static_cast<std::uint32_t>(info.f_type));
}

bool is_empty_file(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

Status check_permissions(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0)
    return io_error(fmt::format("cannot look at cache `{}`", path));
  if (!S_ISREG(info.st_mode)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "cache-foreign-file",
                 .message = fmt::format("cache `{}` is not a regular file", path)};
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return Error{
        .kind = ErrorKind::kBadInput,
        .id = "cache-unsafe-permissions",
        .message = fmt::format("anybody may write cache `{}`, so its code is not run", path),
        .hint = "chmod o-w " + path};
  }
  return ok_status();
}

Status make_parent_directory(const std::string& path) {
  const std::string parent = parent_of(path);
  std::error_code error;
  if (std::filesystem::is_directory(parent, error)) return ok_status();
  ATT_CHECK(make_parent_directory(parent));
  if (mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST) {
    return io_error(fmt::format("cannot make directory `{}`", parent));
  }
  return ok_status();
}

Status publish(const std::string& path, const std::function<Status(const std::string&)>& fill) {
  const std::string fresh = fmt::format("{}.new-{}", path, make_uuid());
  const int fd = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(fmt::format("cannot create cache `{}`", path));
  close(fd);
  Status status = fill(fresh);
  if (status.ok() && link(fresh.c_str(), path.c_str()) != 0) {
    // Somebody else was first, an empty file has the name, or there are no hard links here.
    const int cause = errno;
    const FileLock lock(path);
    if (!exists(path) || is_empty_file(path)) {
      if (rename(fresh.c_str(), path.c_str()) != 0) {
        status = io_error(fmt::format("cannot publish cache `{}`", path));
      }
    } else if (cause != EEXIST) {
      errno = cause;
    }
  }
  unlink(fresh.c_str());
  unlink((fresh + "-journal").c_str());
  sync_directory(path);
  return status;
}

Result<std::string> set_aside(const std::string& path, FileIdentity seen) {
  const FileLock lock(path);
  if (identify(path) != seen) return std::string();
  std::string time = utc_now().substr(0, 19) + "Z";
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  std::string target = fmt::format("{}.corrupt-{}", path, time);
  for (int i = 2; exists(target); ++i) target = fmt::format("{}.corrupt-{}-{}", path, time, i);
  if (rename(path.c_str(), target.c_str()) != 0) {
    return io_error(fmt::format("cannot set damaged cache `{}` aside", path));
  }
  // A journal left under the old name would be rolled into the new file.
  const std::string journal = path + "-journal";
  if (exists(journal)) std::rename(journal.c_str(), (target + "-journal").c_str());
  sync_directory(path);
  return target;
}

bool looks_like_cache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::string head(64 * 1024, '\0');
  const ssize_t got = pread(fd, head.data(), head.size(), 0);
  close(fd);
  head.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  using namespace std::string_view_literals;
  const bool mark = head.size() >= 72 && head.compare(68, 4, "ATTN"sv) == 0;
  return mark || head.find("CREATE TABLE quarantine"sv) != std::string::npos ||
         head.find("CREATE TABLE measurement"sv) != std::string::npos;
}

}  // namespace attune::cache
