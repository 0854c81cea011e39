#include "cache/database.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstring>
#include <map>
#include <mutex>

#include "cache/keys.hpp"
#include "generator/support/embedded.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace attune::cache {
namespace {

// Network filesystems answer a lock in milliseconds, not microseconds.
constexpr int kNetworkBusyFactor = 4;

void att_sum(sqlite3_context* context, int count, sqlite3_value** values) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (int i = 0; i < count; ++i) {
    const int type = sqlite3_value_type(values[i]);
    XXH3_64bits_update(&state, &type, sizeof type);
    if (type == SQLITE_INTEGER) {
      const sqlite3_int64 value = sqlite3_value_int64(values[i]);
      XXH3_64bits_update(&state, &value, sizeof value);
    } else if (type == SQLITE_FLOAT) {
      const double value = sqlite3_value_double(values[i]);
      XXH3_64bits_update(&state, &value, sizeof value);
    } else {
      const void* data = sqlite3_value_blob(values[i]);
      const int length = sqlite3_value_bytes(values[i]);
      XXH3_64bits_update(&state, &length, sizeof length);
      if (length > 0) XXH3_64bits_update(&state, data, static_cast<std::size_t>(length));
    }
  }
  sqlite3_result_int64(context, static_cast<sqlite3_int64>(XXH3_64bits_digest(&state)));
}

void att_hash(sqlite3_context* context, int, sqlite3_value** values) {
  const auto* data = static_cast<const std::uint8_t*>(sqlite3_value_blob(values[0]));
  const std::string hash =
      content_hash({data, static_cast<std::size_t>(sqlite3_value_bytes(values[0]))});
  sqlite3_result_text(context, hash.data(), static_cast<int>(hash.size()), SQLITE_TRANSIENT);
}

int same_path(sqlite3_vfs*, const char* path, int bytes, char* result) {
  const std::size_t length = std::strlen(path) + 1;
  if (length > static_cast<std::size_t>(bytes)) return SQLITE_CANTOPEN;
  std::memcpy(result, path, length);
  return SQLITE_OK;
}

// The VFS `base`, but it takes paths as they are: SQLite's own would turn "/proc/self/fd/7" into
// the name that the folder has at that moment, and open that. Registered once, and never freed.
std::string verbatim_vfs(const std::string& base) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  sqlite3_vfs* const original = sqlite3_vfs_find(base.empty() ? nullptr : base.c_str());
  if (original == nullptr) return base;
  static std::map<std::string, sqlite3_vfs> copies;
  const auto [at, is_new] = copies.try_emplace(std::string("attune-") + original->zName, *original);
  if (is_new) {
    at->second.zName = at->first.c_str();
    at->second.xFullPathname = same_path;
    sqlite3_vfs_register(&at->second, 0);
  }
  return at->first;
}

}  // namespace

std::unique_ptr<Connection> open_database(const std::string& path, const StoreOptions& options,
                                          bool network) {
  const int flags = options.read_only ? SQLite::OPEN_READONLY : SQLite::OPEN_READWRITE;
  const int wait_ms = options.busy_timeout_ms * (network ? kNetworkBusyFactor : 1);
  auto file = HeldFile::hold(path);
  if (!file.ok()) throw SQLite::Exception(file.error().message, SQLITE_CANTOPEN);
  auto database =
      std::make_unique<Connection>(*std::move(file), flags, wait_ms, verbatim_vfs(options.vfs));
  sqlite3* handle = database->getHandle();
  // Without effects, so that views may use them.
  constexpr int kPure = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
  sqlite3_create_function_v2(handle, "att_sum", -1, kPure, nullptr, att_sum, nullptr, nullptr,
                             nullptr);
  sqlite3_create_function_v2(handle, "att_hash", 1, kPure, nullptr, att_hash, nullptr, nullptr,
                             nullptr);
  // The file is input like any other: no SQL of its schema may reach functions with effects, and a
  // cell that points outside its page is damage, not an address.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  database->exec("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY");
  return database;
}

void write_schema(SQLite::Database& database) {
  const auto files = embedded_schema();
  const std::string schema(files.front().text);
  database.exec("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = INCREMENTAL");
  SQLite::Transaction transaction(database);
  database.exec(schema);
  transaction.commit();
}

std::string schema_text(SQLite::Database& database) {
  SQLite::Statement rows(database, "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name");
  std::string text;
  while (rows.executeStep()) {
    for (int i = 0; i < 3; ++i) text += rows.getColumn(i).getString() + "\n";
  }
  return text;
}

bool is_damage(const SQLite::Exception& exception) {
  const int code = exception.getErrorCode() & 0xff;
  return code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

Error to_error(const SQLite::Exception& exception, const std::string& path) {
  Error error{.kind = ErrorKind::kFailed, .id = "cache-failed"};
  const int code = exception.getErrorCode() & 0xff;
  const char* what = "cannot be used";
  switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      error.id = "cache-locked";
      what = "is locked by another process";
      break;
    case SQLITE_FULL:
      error.id = "cache-full";
      what = "has no room on its disk";
      break;
    case SQLITE_READONLY:
      error.id = "cache-read-only";
      what = "is read-only";
      break;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      error.id = "cache-io";
      what = "cannot be read or written";
      break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      error.id = "cache-damaged";
      what = "is damaged";
      break;
    default:
      break;
  }
  error.message = fmt::format("cache `{}` {}: {}", path, what, exception.what());
  return error;
}

}  // namespace attune::cache
