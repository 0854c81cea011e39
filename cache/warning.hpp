// Where warnings of a cache file go.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cache/store.hpp"

namespace attune::cache {

// To the owner, who may have said where to; else to stderr. That may be closed, or a file on a full
// disk, on which fmt::print throws: a warning that nobody can have is lost.
inline void give_warning(const StoreOptions& options, const Error& warning) {
  if (options.warn) {
    options.warn(warning);
    return;
  }
  const std::string line = fmt::format("attune: warning: {} [{}]\n", warning.message, warning.id);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace attune::cache
