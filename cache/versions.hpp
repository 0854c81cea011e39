// Files of older schema versions: recognised, read as they are, and brought up to date.
// Everything here may throw SQLite::Exception.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cache/database.hpp"
#include "cache/rows.hpp"

namespace attune::cache {

constexpr int kOldestVersion = 1;

// A table as an older version had it.
struct OldTable {
  int last_version = 0;      // that had it
  Table table;               // what that version's checksum covered
  std::string_view columns;  // of its name's table today: SQL over the old ones
  std::string_view sql;      // of its definition
};
std::span<const OldTable> old_tables();

// True when the file's schema is, to the letter, that of `version`.
bool has_schema(SQLite::Database& database, int version);

// What follows FROM to read `table` of the schema `name` ("main", or an attached one), whose file
// is of `version`, with today's columns and checksums.
std::string rows_of(const Table& table, int version, std::string_view name);
// The same for one old table that lies under `stored`.
std::string todays_rows(const OldTable& old, std::string_view stored);

// Brings a file of an older version up to date, in one transaction and without loss of a sound row.
void migrate(SQLite::Database& database);

// Makes statements that name today's tables read a file of an older version, which stays as it is.
void show_as_current(SQLite::Database& database, int version);

// Opens a file that open_store() accepts, of whatever version, to read it.
std::unique_ptr<Connection> open_any_version(const std::string& path, const StoreOptions& options);

}  // namespace attune::cache
