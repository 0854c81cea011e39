// Keeping a cache file: merging, exporting, checking, trimming.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace SQLite {
class Database;
}

namespace attune::cache {

// Publishes an empty cache at `path` unless there is one; see publish().
Status create(const std::string& path, const StoreOptions& options);

// Deletes least recently used code that nobody pinned, never the one of hash `keep`, until the file
// fits in `limit_bytes` or nothing evictable is left. Returns how many. Runs in the caller's
// transaction; may throw.
int evict(SQLite::Database& database, std::int64_t limit_bytes, const std::string& keep);

}  // namespace attune::cache
