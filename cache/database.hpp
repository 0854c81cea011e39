// One SQLite connection to a cache file, set up the way every part of the cache needs it.
// Everything here may throw SQLite::Exception; it ends in the file that calls.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache/held_file.hpp"
#include "cache/store.hpp"

namespace attune::cache {

constexpr int kApplicationId = 0x4154544e;  // "ATTN"
constexpr int kSchemaVersion = 4;

// A file that is read through the folder that it was found in.
class Connection final : private HeldFile, public SQLite::Database {
 public:
  Connection(HeldFile file, int flags, int busy_timeout_ms, const std::string& vfs)
      : HeldFile(std::move(file)), SQLite::Database(held_path(), flags, busy_timeout_ms, vfs) {}
  using HeldFile::check_code;
  using HeldFile::check_writable;
  using HeldFile::held_path;
};

// Opens an existing file with this project's pragmas and two SQL functions: att_sum(table, value,
// ...), XXH3-64 of the table's name and the values, the checksum that rows bear; att_hash(blob),
// XXH3-128 in hex.
std::unique_ptr<Connection> open_database(const std::string& path, const StoreOptions& options,
                                          bool network);

// Writes the empty schema into an empty file.
void write_schema(SQLite::Database& database);

// Type, name and SQL of everything that a schema defines, in an order of its own.
std::string schema_text(SQLite::Database& database);

bool is_damage(const SQLite::Exception& exception);  // SQLITE_CORRUPT, SQLITE_NOTADB
// "cache-locked", "cache-full", "cache-read-only", "cache-io", "cache-damaged" or "cache-failed".
Error to_error(const SQLite::Exception& exception, const std::string& path);

}  // namespace attune::cache
