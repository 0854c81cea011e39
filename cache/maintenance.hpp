// Keeping a cache file: counting, merging, exporting, checking, trimming. Nothing here throws
// unless it says so.
#pragma once

#include <cstdint>
#include <map>
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

struct FileSummary {
  std::int64_t bytes = 0;
  int specs = 0, problems = 0, candidates = 0, measurements = 0, rejections = 0;
  int images = 0, pinned_images = 0;
  std::int64_t image_bytes = 0;
};
Result<FileSummary> summarize(const std::string& path);

struct MergeOptions {
  bool with_code = true;  // else times and rejections only
  StoreOptions store;     // of `into`
};
struct Merged {
  int rows = 0;              // that `into` gained or changed
  std::string code_refused;  // why code that was asked for was left out; empty: it was not
};
// Adds all that `from` knows to `into`, which is made when it is not there: the union of two sets
// of facts, so the order and number of merges do not matter. Code that `into` has stays, and none
// is taken from a file that others may write. `from` is only read, and may be damaged: what is
// sound of it is taken. "cache-foreign-file": it is no cache.
Result<Merged> merge(const std::string& from, const std::string& into,
                     const MergeOptions& options = {});

struct ExportOptions {
  std::string spec_hash;  // empty: every spec
  bool with_code = true;  // else times and rejections only
};
// Writes a new file; "cache-exists" when there is one of that name, "cache-untrusted" when others
// may write the code that is asked for.
Status export_to(const std::string& path, const std::string& target, const ExportOptions& options);

struct VerifyReport {
  std::vector<std::string> structure;  // what SQLite's integrity check says; empty: whole
  int damaged_rows = 0;                // fail their checksum, or whose code fails its hash
  // Facts about a problem, candidate or device that is not there: after a rebuild, those whose
  // counterpart was lost. They are sound, and count again when it is written anew.
  int orphaned_rows = 0;
  bool ok() const { return structure.empty() && damaged_rows == 0; }
};
// Reads every byte.
Result<VerifyReport> verify(const std::string& path);

struct Rebuilt {
  int rows = 0;                     // carried over
  std::map<std::string, int> lost;  // rows, by table; none of those that lost nothing
  // Tables of which nobody can tell how much was lost.
  std::vector<std::string> uncounted;
};
// Sets the file aside and carries everything sound into a new one of the same name. For a file that
// verify() complains about.
Result<Rebuilt> rebuild(const std::string& path, const StoreOptions& options = {});

struct GcOptions {
  std::int64_t limit_bytes = 0;  // 0: evict nothing
};
struct GcReport {
  int evicted_images = 0, orphaned_images = 0, leases = 0, temporary_files = 0;
  std::int64_t bytes_before = 0, bytes_after = 0;
};
// Evicts code above the limit, drops code that no build names, leases that ran out and temporary
// files of processes that died, and gives free pages back to the filesystem. Measurements and
// rejections stay.
Result<GcReport> collect_garbage(const std::string& path, const GcOptions& options);

}  // namespace attune::cache
