// Which of a plan's builds stands for it.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "cache/store.hpp"

namespace attune::cache {

// A plan that one compiler built more than once (templates and versions change) stands by the build
// that was measured last: times of the others say nothing of what would run.
class LatestBuilds {
 public:
  void add(const std::string& plan, const std::string& compiler, const std::string& measured_at,
           const std::string& digest) {
    auto& latest = latest_[{plan, compiler_family(compiler)}];
    latest = std::max(latest, {measured_at, digest});
  }
  // Of a build that was added.
  bool is_latest(const std::string& plan, const std::string& compiler,
                 const std::string& digest) const {
    return latest_.at({plan, compiler_family(compiler)}).second == digest;
  }

 private:
  // A plan and who compiled it; when measured, and the digest.
  std::map<std::pair<std::string, std::string>, std::pair<std::string, std::string>> latest_;
};

}  // namespace attune::cache
