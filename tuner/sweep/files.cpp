#include "tuner/sweep/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace attune::sweep_files {
namespace {

namespace fs = std::filesystem;

Error io_error(const std::string& what, const std::string& path) {
  return {.id = "sweep-io",
          .message = fmt::format("cannot {} `{}`: {}", what, path, strerror(errno))};
}

std::string worker_file(const std::string& directory, const Shard& shard, int device,
                        const char* extension) {
  return fmt::format("{}/shard-{}-of-{}-gpu{}.{}", directory, shard.index + 1, shard.count, device,
                     extension);
}

std::vector<std::string> all_with(const std::string& directory, const std::string& extension) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("shard-") && entry.path().extension() == extension)
      paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

Status write_all(int fd, const std::string& text, const std::string& path) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error("write", path);
    done += static_cast<std::size_t>(wrote);
  }
  if (fsync(fd) != 0) return io_error("write", path);
  return ok_status();
}

}  // namespace

std::string manifest(const std::string& directory) { return directory + "/manifest.json"; }
std::string results(const std::string& directory, const Shard& shard, int device) {
  return worker_file(directory, shard, device, "db");
}
std::string journal(const std::string& directory, const Shard& shard, int device) {
  return worker_file(directory, shard, device, "journal");
}
std::string lock(const std::string& directory, const Shard& shard) {
  return fmt::format("{}/shard-{}-of-{}.lock", directory, shard.index + 1, shard.count);
}
std::vector<std::string> all_results(const std::string& directory) {
  return all_with(directory, ".db");
}
std::vector<std::string> all_journals(const std::string& directory) {
  return all_with(directory, ".journal");
}

Status write_whole(const std::string& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  const std::string fresh = fmt::format("{}.new-{}", path, getpid());
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("write", path);
  Status status = write_all(fd, text, path);
  close(fd);
  if (status.ok() && std::rename(fresh.c_str(), path.c_str()) != 0)
    status = io_error("write", path);
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

Status append_line(const std::string& path, const std::string& line) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("write", path);
  // A line that a kill cut short is ended first, so that it spoils none but itself.
  Status status = write_all(fd, "\n" + line + "\n", path);
  close(fd);
  return status;
}

}  // namespace attune::sweep_files
