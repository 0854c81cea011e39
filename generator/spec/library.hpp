// The specs that travel inside the library, under the names that the command takes.
#pragma once

#include <span>
#include <string_view>

#include "generator/support/result.hpp"

namespace attune {

struct LibrarySpec {
  std::string_view name;  // "causal", "models/llama3_8b"
  std::string_view path;  // "specs/causal.yaml"
  std::string_view text;
};

// All of them, by name.
std::span<const LibrarySpec> spec_library();

// By name or by path: `causal`, `causal.yaml`, `specs/causal.yaml`, `models/llama3_8b`. The error
// (spec-not-found) suggests the nearest name. Thread-safe.
Result<LibrarySpec> find_library_spec(std::string_view name);

}  // namespace attune
