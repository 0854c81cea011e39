// A spec by the path of its file or by its name in the library.
#pragma once

#include <string>

#include "generator/spec/spec.hpp"

namespace attune {

struct SpecText {
  std::string text;
  std::string origin;  // for messages: the path as given, or the library's ("specs/causal.yaml")
};

// A file wins over a library name. Reads regular files and pipes up to 1 MiB. Errors are kBadInput:
// spec-not-found with the nearest library name, spec-unreadable, spec-too-large. Thread-safe.
Result<SpecText> read_spec(const std::string& path_or_name);

// The same, parsed.
Result<AttentionSpec> load_spec(const std::string& path_or_name);

}  // namespace attune
