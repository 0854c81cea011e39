#include "cache/held_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace attune::cache {
namespace {

// What a stranger could have done through `info`; empty: nothing.
std::string danger(const struct stat& info) {
  if (info.st_uid != geteuid() && info.st_uid != 0) return "belongs to another user";
  if ((info.st_mode & S_IWOTH) != 0) return "may be written by anybody";
  if ((info.st_mode & S_IWGRP) != 0) return "may be written by its group";
  return "";
}

Error untrusted(const std::string& file, std::string why, std::string hint) {
  return {
      .kind = ErrorKind::kBadInput,
      .id = "cache-untrusted",
      .message = fmt::format("the kernels of cache `{}` are not run, its measurements are used: "
                             "{}",
                             file, why),
      .hint = std::move(hint)};
}

}  // namespace

Result<HeldFile> HeldFile::hold(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  int folder = -1;
  if (!error) {
    folder = open(real.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    return Error{.id = "cache-io",
                 .message = fmt::format("cannot look at cache `{}`: {}", path, error.message())};
  }
  HeldFile held(folder, real.filename(), real);
  struct stat named{}, found{};
  if (fstatat(folder, held.name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
      (stat(held.path_.c_str(), &found) != 0 || found.st_ino != named.st_ino)) {
    held.path_ = real;
    held.pinned_ = false;
  }
  return held;
}

HeldFile::HeldFile(int folder, std::string name, std::string shown)
    : folder_(folder),
      name_(std::move(name)),
      shown_(std::move(shown)),
      path_(fmt::format("/proc/self/fd/{}/{}", folder_, name_)) {}

HeldFile::HeldFile(HeldFile&& other) noexcept
    : folder_(std::exchange(other.folder_, -1)),
      name_(std::move(other.name_)),
      shown_(std::move(other.shown_)),
      path_(std::move(other.path_)),
      pinned_(other.pinned_) {}

HeldFile::~HeldFile() {
  if (folder_ >= 0) close(folder_);
}

Status HeldFile::check_code() const {
  struct stat folder{}, file{};
  if (!pinned_) return untrusted(shown_, "without /proc its folder cannot be held", "mount /proc");
  if (fstat(folder_, &folder) != 0 ||
      fstatat(folder_, name_.c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(file.st_mode)) {
    return untrusted(shown_, "it is no regular file any more", "");
  }
  if (const std::string why = danger(file); !why.empty())
    return untrusted(shown_, "the file " + why,
                     fmt::format("chmod go-w {0}; chown it to yourself", shown_));
  if (const std::string why = danger(folder); !why.empty()) {
    return untrusted(shown_, "its folder " + why,
                     "keep it in a folder of your own that nobody else may write");
  }
  return ok_status();
}

Status HeldFile::check_writable() const {
  for (const char* const name : {name_.c_str(), "."}) {
    if (faccessat(folder_, name, W_OK, AT_EACCESS) == 0) continue;
    if (errno != EACCES && errno != EROFS) continue;  // it could not be asked
    return Error{.id = "cache-read-only",
                 .message = fmt::format(
                     "cache `{}` cannot be written: {}{}", shown_,
                     name == name_ ? "" : "its folder: ", std::generic_category().message(errno))};
  }
  return ok_status();
}

}  // namespace attune::cache
