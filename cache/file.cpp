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
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

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

// Serialises what follows a damaged file, and the fallback of publish, among processes. Where flock
// is missing (some network filesystems) the renames stay atomic, only two processes may both set a
// file aside. A process that was stopped while it held the lock is not waited for.
constexpr int kLockWaitMs = 5000;
class FileLock {
 public:
  explicit FileLock(const std::string& path, int wait_ms = kLockWaitMs) {
    fd_ = open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return;
    constexpr std::chrono::milliseconds kRetry{5};
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      others_ = std::chrono::steady_clock::now() >= until;
      if (others_) return;
      std::this_thread::sleep_for(kRetry);
    }
  }
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Another process holds it still.
  bool is_others() const { return others_; }

 private:
  int fd_ = -1;
  bool others_ = false;
};

bool exists(const std::string& path) { return identify(path).has_value(); }

// What set_aside() took away and nobody has finished with: mostly one, and the next number is free.
std::string damaged_name(const std::string& path, std::size_t number) {
  return number == 1 ? path + ".damaged" : fmt::format("{}.damaged-{}", path, number);
}
std::vector<std::string> damaged_files(const std::string& path) {
  std::vector<std::string> names;
  while (exists(damaged_name(path, names.size() + 1)))
    names.push_back(damaged_name(path, names.size() + 1));
  return names;
}

std::string unused_corrupt_name(const std::string& path) {
  std::string time = utc_now().substr(0, 19) + "Z";
  std::erase_if(time, [](char c) { return c == '-' || c == ':'; });
  std::string name = fmt::format("{}.corrupt-{}", path, time);
  for (int i = 2; exists(name); ++i) name = fmt::format("{}.corrupt-{}-{}", path, time, i);
  return name;
}

Status rename_with_journal(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0)
    return io_error(fmt::format("cannot set damaged cache `{}` aside", from));
  // A journal left under the old name would be rolled into the file that takes it.
  const std::string journal = from + "-journal";
  if (exists(journal)) std::rename(journal.c_str(), (to + "-journal").c_str());
  sync_directory(from);
  return ok_status();
}

std::string head_of(const std::string& path, std::size_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string head(bytes, '\0');
  const ssize_t got = pread(fd, head.data(), head.size(), 0);
  close(fd);
  head.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return head;
}

// SQLite's application_id; https://www.sqlite.org/fileformat2.html, section 1.3.
bool has_mark(std::string_view head) { return head.size() >= 72 && head.substr(68, 4) == "ATTN"; }

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

Status check_regular(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0)
    return io_error(fmt::format("cannot look at cache `{}`", path));
  if (!S_ISREG(info.st_mode)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "cache-foreign-file",
                 .message = fmt::format("cache `{}` is not a regular file", path)};
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

Result<bool> set_aside(const std::string& path, FileIdentity seen) {
  const FileLock lock(path);
  if (identify(path) != seen) return false;
  ATT_CHECK(rename_with_journal(path, damaged_name(path, damaged_files(path).size() + 1)));
  return true;
}

Result<std::vector<std::string>> finish_set_aside(
    const std::string& path, int wait_ms,
    const std::function<Status(const std::string& damaged)>& carry_over) {
  std::vector<std::string> finished;
  if (damaged_files(path).empty()) return finished;
  const FileLock lock(path, wait_ms);
  if (lock.is_others()) return finished;
  std::vector<std::string> damaged = damaged_files(path);
  // The last first: what is left has no gap in its numbers.
  for (; !damaged.empty(); damaged.pop_back()) {
    ATT_CHECK(carry_over(damaged.back()));
    finished.push_back(unused_corrupt_name(path));
    ATT_CHECK(rename_with_journal(damaged.back(), finished.back()));
  }
  return finished;
}

std::optional<int> stated_version(const std::string& path) {
  const std::string head = head_of(path, 72);
  if (!has_mark(head)) return std::nullopt;
  int version = 0;
  for (std::size_t i = 60; i < 64; ++i) version = version << 8 | static_cast<std::uint8_t>(head[i]);
  return version;
}

bool looks_like_cache(const std::string& path) {
  using namespace std::string_view_literals;
  // The schema's texts fill several pages, and the later ones stand behind the tables' first ones.
  const std::string head = head_of(path, 256 * 1024);
  return has_mark(head) || head.find("CREATE TABLE quarantine"sv) != std::string::npos ||
         head.find("CREATE TABLE measurement"sv) != std::string::npos;
}

}  // namespace attune::cache
