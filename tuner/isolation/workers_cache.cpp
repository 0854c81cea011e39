#include "tuner/isolation/workers_cache.hpp"

#include <stdlib.h>

#include <filesystem>
#include <system_error>

namespace attune {

WorkersCache::WorkersCache(const Store& store) : path_(store.path()) {
  if (store.health().code_refused.empty()) return;
  std::error_code code;
  std::string folder = (std::filesystem::temp_directory_path(code) / "attune-XXXXXX").string();
  // Without one kernels are compiled twice, no more.
  if (code || mkdtemp(folder.data()) == nullptr) return;
  folder_ = std::move(folder);
  path_ = folder_ + "/kernels.db";
}

WorkersCache::~WorkersCache() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

}  // namespace attune
