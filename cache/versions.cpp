#include "cache/versions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "cache/file.hpp"

namespace attune::cache {
namespace {

// Version 1 knew one pass.
constexpr std::array<std::string_view, 7> kProblem1{"digest",   "spec_hash", "batch", "heads",
                                                    "kv_heads", "q_len",     "kv_len"};
constexpr std::string_view kProblem1Sql = R"(CREATE TABLE problem (
  digest    TEXT PRIMARY KEY NOT NULL,  -- of all below
  spec_hash TEXT NOT NULL,
  batch     INTEGER NOT NULL,
  heads     INTEGER NOT NULL,
  kv_heads  INTEGER NOT NULL,
  q_len     INTEGER NOT NULL,
  kv_len    INTEGER NOT NULL,
  sum       INTEGER NOT NULL
) STRICT)";
constexpr std::array<OldTable, 1> kOldTables{
    {{1,
      {"problem", "digest", kProblem1, {}, ""},
      "digest, spec_hash, 'forward' AS pass, batch, heads, kv_heads, q_len, kv_len",
      kProblem1Sql}}};

// Tables that came later, by the version that brought them.
constexpr std::array<std::pair<std::string_view, int>, 3> kNewTables{
    {{"spec", 2}, {"mask_data", 3}, {"length_data", 4}}};

bool is_new_since(std::string_view table, int version) {
  return std::ranges::any_of(
      kNewTables, [&](const auto& one) { return one.first == table && version < one.second; });
}

const OldTable* old_table(std::string_view name, int version) {
  const auto at = std::ranges::find_if(kOldTables, [&](const OldTable& old) {
    return old.table.name == name && version <= old.last_version;
  });
  return at == kOldTables.end() ? nullptr : &*at;
}

SQLite::Database empty_cache() {
  SQLite::Database memory(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  write_schema(memory);
  return memory;
}

// The statements that make a table and its indices.
std::vector<std::string> definitions(SQLite::Database& database, std::string_view table) {
  SQLite::Statement rows(database,
                         "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL "
                         "ORDER BY type DESC, name");
  rows.bind(1, std::string(table));
  std::vector<std::string> statements;
  while (rows.executeStep()) statements.push_back(rows.getColumn(0).getString());
  return statements;
}

std::string schema_of(int version) {
  SQLite::Database memory = empty_cache();
  for (const auto& [table, since] : kNewTables) {
    if (version < since) memory.exec(fmt::format("DROP TABLE {}", table));
  }
  for (const Table& table : tables()) {
    const OldTable* old = old_table(table.name, version);
    if (old == nullptr) continue;
    std::vector<std::string> statements = definitions(memory, table.name);
    statements.front() = old->sql;
    memory.exec(fmt::format("DROP TABLE {}", table.name));
    for (const std::string& sql : statements) memory.exec(sql);
  }
  return schema_text(memory);
}

int version_of(SQLite::Database& database) {
  return database.execAndGet("PRAGMA user_version").getInt();
}

}  // namespace

std::span<const OldTable> old_tables() { return kOldTables; }

bool has_schema(SQLite::Database& database, int version) {
  static const std::array<std::string, kSchemaVersion> kSchemas = [] {
    std::array<std::string, kSchemaVersion> schemas;
    for (int i = 0; i < kSchemaVersion; ++i)
      schemas[static_cast<std::size_t>(i)] = schema_of(i + 1);
    return schemas;
  }();
  return version >= kOldestVersion && version <= kSchemaVersion &&
         schema_text(database) == kSchemas[static_cast<std::size_t>(version - 1)];
}

std::string todays_rows(const OldTable& old, std::string_view stored) {
  const Table& today = table(old.table.name);
  const std::string sum = sum_of(today);
  // A row that was damaged stays so: its sum is wrong today as well.
  return fmt::format(
      "(SELECT {0}, iif(was_sound, {1}, ~{1}) AS sum FROM (SELECT {2}, {3} AS was_sound FROM {4}))",
      fmt::join(today.summed, ", "), sum, old.columns, sound(old.table, ""), stored);
}

std::string rows_of(const Table& table, int version, std::string_view name) {
  if (is_new_since(table.name, version)) {
    std::string columns;
    for (std::string_view column : table.summed) columns += fmt::format("'' AS {}, ", column);
    return fmt::format("(SELECT {}0 AS sum WHERE false)", columns);
  }
  const std::string stored = fmt::format("{}.{}", name, table.name);
  const OldTable* old = old_table(table.name, version);
  return old == nullptr ? stored : todays_rows(*old, stored);
}

void migrate(SQLite::Database& database) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::EXCLUSIVE);
  const int version = version_of(database);  // another process may have been faster
  SQLite::Database today = empty_cache();
  for (const Table& table : tables()) {
    const OldTable* old = old_table(table.name, version);
    if (old == nullptr && !is_new_since(table.name, version)) continue;
    if (old != nullptr) {
      database.exec(fmt::format("CREATE TEMP TABLE old_{0} AS SELECT * FROM main.{0}", table.name));
      database.exec(fmt::format("DROP TABLE main.{}", table.name));
    }
    for (const std::string& sql : definitions(today, table.name)) database.exec(sql);
    if (old != nullptr) {
      const std::string stored = fmt::format("temp.old_{}", table.name);
      database.exec(insert_from(table, todays_rows(*old, stored)));
      database.exec("DROP TABLE " + stored);
    }
  }
  database.exec(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
  transaction.commit();
}

void show_as_current(SQLite::Database& database, int version) {
  for (const Table& table : tables()) {
    if (old_table(table.name, version) == nullptr && !is_new_since(table.name, version)) continue;
    // A name without a schema means the temporary one first.
    database.exec(fmt::format("CREATE TEMP VIEW {} AS SELECT * FROM {}", table.name,
                              rows_of(table, version, "main")));
  }
}

std::unique_ptr<Connection> open_any_version(const std::string& path, const StoreOptions& options) {
  auto database = open_database(path, options, on_network_filesystem(path));
  show_as_current(*database, version_of(*database));
  return database;
}

}  // namespace attune::cache
