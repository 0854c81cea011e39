// Structs that carry their size, of older and newer headers than this library's.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "generator/support/result.hpp"

namespace attune {

constexpr std::size_t kMaxStructBytes = 4096;  // more is an uninitialised size

inline Error bad_struct(const char* name, const char* what, const char* hint) {
  return {.kind = ErrorKind::kBadInput,
          .id = "bad-argument",
          .message = fmt::format("`{}.struct_size` is {}", name, what),
          .hint = hint};
}

// `first_bytes`: of the struct in the first header that had it.
inline Status check_struct_size(const char* name, std::size_t bytes, std::size_t first_bytes) {
  if (bytes >= first_bytes && bytes <= kMaxStructBytes) return ok_status();
  return bad_struct(name, "that of no version", "set it to sizeof the struct");
}

// The caller's struct in the form that is known here: what a shorter one lacks is zero; what a
// longer one has beyond must be.
template <typename Struct>
Status read_struct(const char* name, const Struct* given, std::size_t first_bytes, Struct* known) {
  const std::size_t bytes = given->struct_size;
  ATT_CHECK(check_struct_size(name, bytes, first_bytes));
  const auto* raw = reinterpret_cast<const unsigned char*>(given);
  if (bytes > sizeof(Struct) &&
      std::any_of(raw + sizeof(Struct), raw + bytes, [](unsigned char b) { return b != 0; })) {
    return bad_struct(name, "larger than known, and what lies beyond is not zero",
                      "zero what is not used, or update the library: it is older than the header");
  }
  *known = {};
  std::memcpy(known, raw, std::min(bytes, sizeof(Struct)));
  return ok_status();
}

// `known` into the caller's struct, as far as that has room; what it has beyond becomes zero.
template <typename Struct>
Status write_struct(const char* name, const Struct& known, std::size_t first_bytes, Struct* out) {
  const std::size_t bytes = out->struct_size;
  ATT_CHECK(check_struct_size(name, bytes, first_bytes));
  auto* raw = reinterpret_cast<unsigned char*>(out);
  std::memcpy(raw, &known, std::min(bytes, sizeof(Struct)));
  if (bytes > sizeof(Struct)) std::memset(raw + sizeof(Struct), 0, bytes - sizeof(Struct));
  out->struct_size = bytes;
  return ok_status();
}

}  // namespace attune
