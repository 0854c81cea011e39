#include "cli/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace attune::cli {
namespace {

Error cannot_write(const std::string& path, int code) {
  return Error{
      .kind = ErrorKind::kFailed,
      .id = "write-file",
      .message = fmt::format("cannot write `{}`: {}", path, std::generic_category().message(code))};
}

Status write_to(const std::string& path, const std::string& shown, std::string_view bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write(shown, errno);
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const int write_code = errno;
  if (std::fclose(file) != 0) return cannot_write(shown, errno);
  if (!written) return cannot_write(shown, write_code);
  return ok_status();
}

}  // namespace

Status write_file(const std::string& path, std::string_view bytes) {
  std::error_code code;
  // A device or a pipe (/dev/null, /dev/stdout) cannot be replaced.
  const auto status = std::filesystem::status(path, code);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return write_to(path, path, bytes);
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  auto written = write_to(temporary, path, bytes);
  if (written.ok()) std::filesystem::rename(temporary, path, code);
  if (!written.ok() || code) std::remove(temporary.c_str());
  if (written.ok() && code) return cannot_write(path, code.value());
  return written;
}

}  // namespace attune::cli
