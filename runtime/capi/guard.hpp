// The boundary of the C interface: errors become codes and a message, exceptions end here.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "generator/support/result.hpp"
#include "runtime/include/attune/attune.h"

namespace attune {

// This thread's message; empty at a thread's start.
std::string& last_error_message();

[[gnu::cold]] inline Error null_argument(const char* name) {
  return {.kind = ErrorKind::kBadInput,
          .id = "bad-argument",
          .message = std::string("`") + name + "` is null"};
}

// The error's code; its message is this thread's last from now on. Cold, so that what calls it
// keeps to its own path.
[[gnu::cold]] att_status report(const Error& error);

// Runs `body`, which returns a Status. What the libraries below throw is memory running out.
template <typename Body>
att_status guarded(const Body& body) noexcept {
  try {
    const Status status = body();
    if (status.ok()) return ATT_OK;
    return report(status.error());
  } catch (const std::exception& exception) {
    try {
      last_error_message() = exception.what();
    } catch (...) {
      last_error_message().clear();
    }
  } catch (...) {
    last_error_message().clear();
  }
  return ATT_FAILED;
}

}  // namespace attune
