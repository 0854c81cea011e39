// att_version, att_last_error and att_runtime_*.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "runtime/capi/guard.hpp"
#include "runtime/capi/handles.hpp"
#include "runtime/capi/structs.hpp"
#include "runtime/engine/status.hpp"

namespace attune {

std::string& last_error_message() {
  thread_local std::string message;
  return message;
}

att_status report(const Error& error) {
  last_error_message() = render(error);
  switch (error.kind) {
    case ErrorKind::kFailed:
      return ATT_FAILED;
    case ErrorKind::kBadInput:
      return ATT_BAD_INPUT;
    case ErrorKind::kUnsupported:
      return ATT_UNSUPPORTED;
    case ErrorKind::kUnavailable:
      return ATT_UNAVAILABLE;
  }
  return ATT_FAILED;
}

namespace {

#define ATT_TEXT_(x) #x
#define ATT_TEXT(x) ATT_TEXT_(x)
constexpr const char* kVersion =
    ATT_TEXT(ATT_VERSION_MAJOR) "." ATT_TEXT(ATT_VERSION_MINOR) "." ATT_TEXT(ATT_VERSION_PATCH);
static_assert(std::string_view(kVersion) == ATTUNE_VERSION, "CMakeLists.txt says another version");

Result<std::unique_ptr<att_runtime>> open_runtime(const att_runtime_options& options) {
  const std::string device = options.device == nullptr ? "" : options.device;
  const std::string cache = options.cache_file == nullptr ? ""
                            : *options.cache_file == '\0' ? "none"
                                                          : options.cache_file;
  auto log = std::make_unique<RuntimeLog>(options.log, options.log_context);
  ATT_TRY(std::shared_ptr<Workshop> workshop,
          Workshop::open(device, cache, log->writer(), options.check != 0));
  return std::make_unique<att_runtime>(std::move(log), std::move(workshop),
                                       options.background != 0);
}

}  // namespace
}  // namespace attune

using namespace attune;

extern "C" {

const char* att_version(void) { return kVersion; }

const char* att_last_error(void) { return last_error_message().c_str(); }

att_status att_runtime_create(const att_runtime_options* options, att_runtime** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    att_runtime_options known{};
    if (options != nullptr) {
      ATT_CHECK(read_struct("options", options, offsetof(att_runtime_options, background), &known));
    }
    ATT_TRY(std::unique_ptr<att_runtime> runtime, open_runtime(known));
    *out = runtime.release();
    return ok_status();
  });
}

void att_runtime_destroy(att_runtime* runtime) {
  if (runtime != nullptr && runtime->is_of_this_process()) delete runtime;
}

att_status att_runtime_refresh(att_runtime* runtime) {
  return guarded([&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    return runtime->dispatcher.refresh();
  });
}

void att_runtime_wait(att_runtime* runtime) {
  if (runtime != nullptr && runtime->is_of_this_process()) runtime->dispatcher.wait_idle();
}

size_t att_runtime_status(const att_runtime* runtime, char* buffer, size_t size) {
  std::size_t needed = 0;
  (void)guarded([&]() -> Status {
    if (runtime == nullptr) return null_argument("runtime");
    const std::string text = status_json(runtime->dispatcher);
    if (buffer != nullptr && size > 0) {
      const std::size_t copied = std::min(size - 1, text.size());
      std::memcpy(buffer, text.data(), copied);
      buffer[copied] = '\0';
    }
    needed = text.size() + 1;
    return ok_status();
  });
  return needed;
}

const char* att_runtime_device(const att_runtime* runtime) {
  return runtime == nullptr ? "" : runtime->device.c_str();
}

}  // extern "C"
