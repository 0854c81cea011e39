// One SQLite connection to a cache file, set up the way every part of the cache needs it.
// Everything here may throw SQLite::Exception; it ends in the file that calls.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache/store.hpp"

namespace attune::cache {

constexpr int kApplicationId = 0x4154544e;  // "ATTN"
constexpr int kSchemaVersion = 1;

// Opens an existing file with this project's pragmas and two SQL functions: att_sum(table, value,
// ...), XXH3-64 of the table's name and the values, the checksum that rows bear; att_hash(blob),
// XXH3-128 in hex.
std::unique_ptr<SQLite::Database> open_database(const std::string& path,
                                                const StoreOptions& options, bool network);

// Writes the empty schema into an empty file.
void write_schema(SQLite::Database& database);

// True when the file's schema is, to the letter, the one of cache/schema.sql.
bool has_our_schema(SQLite::Database& database);

bool is_damage(const SQLite::Exception& exception);  // SQLITE_CORRUPT, SQLITE_NOTADB
// "cache-locked", "cache-full", "cache-read-only", "cache-io", "cache-damaged" or "cache-failed".
Error to_error(const SQLite::Exception& exception, const std::string& path);

}  // namespace attune::cache
