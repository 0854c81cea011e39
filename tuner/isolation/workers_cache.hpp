// The cache file through which a search's workers hand kernels to each other.
#pragma once

#include <string>

#include "cache/store.hpp"

namespace attune {

// Compiling workers put code there, and the measuring one finds it. Where the caller's file keeps
// no code, since others may write it, each kernel would be compiled once more, one after the other:
// tuning a decode problem took 35 s instead of 12 s so. Then it is a file in a folder that nobody
// else may enter, which goes with this object.
class WorkersCache {
 public:
  explicit WorkersCache(const Store& store);
  WorkersCache(const WorkersCache&) = delete;
  WorkersCache& operator=(const WorkersCache&) = delete;
  ~WorkersCache();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string folder_;  // of its own, or empty
};

}  // namespace attune
