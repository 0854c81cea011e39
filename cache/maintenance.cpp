#include "cache/maintenance.hpp"

#include <fmt/format.h>

#include "cache/database.hpp"
#include "cache/file.hpp"
#include "cache/rows.hpp"

namespace attune::cache {

Status create(const std::string& path, const StoreOptions& options) {
  return publish(path, [&](const std::string& fresh) -> Status {
    try {
      StoreOptions writable = options;
      writable.read_only = false;
      const auto database = open_database(fresh, writable, on_network_filesystem(path));
      write_schema(*database);
      return ok_status();
    } catch (const SQLite::Exception& exception) {
      return to_error(exception, path);
    }
  });
}

int evict(SQLite::Database& database, std::int64_t limit_bytes, const std::string& keep) {
  const auto pragma = [&](const char* name) {
    return database.execAndGet(fmt::format("PRAGMA {}", name)).getInt64();
  };
  const std::int64_t page_bytes = pragma("page_size");
  std::int64_t excess =
      (pragma("page_count") - pragma("freelist_count")) * page_bytes - limit_bytes;
  int evicted = 0;
  while (excess > 0) {
    SQLite::Statement oldest(
        database,
        "SELECT hash, length FROM cubin WHERE pinned = 0 AND hash <> ? ORDER BY last_used, hash "
        "LIMIT 1");
    oldest.bind(1, keep);
    if (!oldest.executeStep()) break;
    const std::string hash = oldest.getColumn(0).getString();
    excess -= oldest.getColumn(1).getInt64();
    oldest.reset();
    for (const char* sql :
         {"DELETE FROM build WHERE cubin = ?", "DELETE FROM cubin WHERE hash = ?"}) {
      SQLite::Statement remove(database, sql);
      remove.bind(1, hash);
      remove.exec();
    }
    ++evicted;
  }
  if (evicted > 0) database.exec("PRAGMA incremental_vacuum");
  return evicted;
}

}  // namespace attune::cache
