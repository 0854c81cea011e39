#include "cache/maintenance.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <chrono>
#include <filesystem>

#include "cache/database.hpp"
#include "cache/file.hpp"
#include "cache/keys.hpp"
#include "cache/row_counts.hpp"
#include "cache/rows.hpp"
#include "cache/salvage.hpp"
#include "cache/store_file.hpp"
#include "cache/versions.hpp"

namespace attune::cache {
namespace {

// A process makes its temporary file and publishes it within a second; a day is a process that
// died.
constexpr std::chrono::hours kTemporaryFileAge{24};

// Runs f(database) on an existing cache file; SQLite's exceptions end here.
template <typename T, typename F>
Result<T> with_database(const std::string& path, const StoreOptions& options, F f) {
  // The store's checks of permissions, version and schema; it sets nothing aside when it only
  // reads.
  StoreOptions reading = options;
  reading.read_only = true;
  ATT_TRY(const auto store, open_store(path, reading));
  try {
    const auto database = open_any_version(path, options);
    return Result<T>(f(*database));
  } catch (const SQLite::Exception& exception) {
    return to_error(exception, path);
  }
}

StoreOptions reading() { return {.read_only = true}; }

std::int64_t number(SQLite::Database& database, const std::string& sql) {
  return database.execAndGet(sql).getInt64();
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

std::int64_t file_bytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);
}

// Images that some build of `other` brings: not those of builds that are here already.
std::string wanted_images(const std::string& rows) {
  return fmt::format(
      "(SELECT * FROM {} WHERE hash IN (SELECT hash FROM main.cubin) OR hash IN (SELECT cubin FROM "
      "other.build WHERE candidate NOT IN (SELECT candidate FROM main.build WHERE cubin IN (SELECT "
      "hash FROM main.cubin))))",
      rows);
}

// Returns the number of rows gained or changed.
int take_all(SQLite::Database& database, const HeldFile& from, bool with_code) {
  database.exec("ATTACH " + quoted(from.held_path()) + " AS other");
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  const int version = database.execAndGet("PRAGMA other.user_version").getInt();
  const int before = database.getTotalChanges();
  for (const Table& table : tables()) {
    if (is_code(table) && !with_code) continue;
    const std::string rows = rows_of(table, version, "other");
    database.exec(insert_from(table, table.name == "cubin" ? wanted_images(rows) : rows));
  }
  transaction.commit();
  const int changed = database.getTotalChanges() - before;
  database.exec("DETACH other");
  return changed;
}

int remove_temporary_files(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file(path);
  const std::string prefix = file.filename().string() + ".new-";
  int removed = 0;
  std::error_code error;
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const auto written = entry.last_write_time(error);
    if (error || fs::file_time_type::clock::now() - written < kTemporaryFileAge) continue;
    removed += fs::remove(entry.path(), error);
  }
  return removed;
}

}  // namespace

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
  const std::int64_t page_bytes = number(database, "PRAGMA page_size");
  std::int64_t excess =
      (number(database, "PRAGMA page_count") - number(database, "PRAGMA freelist_count")) *
          page_bytes -
      limit_bytes;
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

Result<FileSummary> summarize(const std::string& path) {
  auto summary = with_database<FileSummary>(path, reading(), [](SQLite::Database& database) {
    const auto count = [&](const char* what) {
      return static_cast<int>(number(database, fmt::format("SELECT {}", what)));
    };
    return FileSummary{
        .specs = count("count(DISTINCT spec_hash) FROM problem"),
        // A row for each kind of data that one was measured on.
        .problems = count(
            "count(*) FROM (SELECT DISTINCT spec_hash, pass, batch, heads, kv_heads, q_len, kv_len "
            "FROM problem)"),
        .candidates = count("count(*) FROM candidate"),
        .measurements = count("count(*) FROM measurement"),
        .rejections = count("count(*) FROM quarantine"),
        .images = count("count(*) FROM cubin"),
        .pinned_images = count("count(*) FROM cubin WHERE pinned <> 0"),
        .image_bytes = number(database, "SELECT coalesce(sum(length), 0) FROM cubin")};
  });
  if (summary.ok()) summary->bytes = file_bytes(path);
  return summary;
}

Result<Merged> merge(const std::string& from, const std::string& into,
                     const MergeOptions& options) {
  if (identify(from) && identify(from) == identify(into)) return Merged{};
  auto source = open_store(from, reading());
  const bool damaged = !source.ok() && source.error().id == "cache-damaged";
  if (!source.ok() && !damaged) return source.error();
  // Opens, creates or renews the target.
  ATT_TRY(const auto target, open_store(into, options.store));
  ATT_TRY(const HeldFile held, HeldFile::hold(from));
  const Status trusted = held.check_code();
  const bool with_code = options.with_code && trusted.ok();
  Merged merged;
  if (options.with_code && !trusted.ok()) merged.code_refused = trusted.error().message;
  if (!damaged) {
    const auto rows = with_database<int>(into, options.store, [&](SQLite::Database& database) {
      return take_all(database, held, with_code);
    });
    if (rows.ok()) merged.rows = *rows;
    if (rows.ok()) return merged;
    if (rows.error().id != "cache-damaged") return rows.error();
  }
  ATT_TRY(merged.rows, salvage(from, into, options.store, with_code));
  if (merged.rows == 0) {
    return Error{.id = "cache-damaged",
                 .message = fmt::format("cache `{}` is damaged, and nothing in it is sound", from)};
  }
  return merged;
}

Status export_to(const std::string& path, const std::string& target, const ExportOptions& options) {
  ATT_TRY(const auto source, open_store(path, reading()));
  if (identify(target)) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "cache-exists",
                 .message = fmt::format("`{}` exists already", target),
                 .hint = "`attune cache merge` adds to a file"};
  }
  ATT_TRY(const HeldFile held, HeldFile::hold(path));
  if (Status trusted = held.check_code(); options.with_code && !trusted.ok()) {
    trusted.error().hint += "; --no-code exports the measurements";
    return trusted;
  }
  ATT_CHECK(make_parent_directory(target));
  return publish(target, [&](const std::string& fresh) -> Status {
    try {
      const auto database = open_database(fresh, {}, on_network_filesystem(target));
      write_schema(*database);
      take_all(*database, held, options.with_code);
      if (!options.spec_hash.empty()) {
        const std::string others = "<> " + quoted(options.spec_hash);
        const std::string problems = "(SELECT digest FROM problem WHERE spec_hash " + others + ")";
        database->exec("DELETE FROM measurement WHERE problem IN " + problems);
        database->exec("DELETE FROM quarantine WHERE problem IN " + problems);
        database->exec(
            "DELETE FROM build WHERE candidate IN (SELECT digest FROM candidate WHERE spec_hash " +
            others + ")");
        database->exec("DELETE FROM candidate WHERE spec_hash " + others);
        database->exec("DELETE FROM mask_data WHERE problem IN " + problems);
        database->exec("DELETE FROM length_data WHERE problem IN " + problems);
        database->exec("DELETE FROM problem WHERE spec_hash " + others);
      }
      database->exec("DELETE FROM cubin WHERE hash NOT IN (SELECT cubin FROM build)");
      database->exec("VACUUM");
      return ok_status();
    } catch (const SQLite::Exception& exception) {
      return to_error(exception, target);
    }
  });
}

Result<VerifyReport> verify(const std::string& path) {
  return with_database<VerifyReport>(path, reading(), [](SQLite::Database& database) {
    VerifyReport report;
    SQLite::Statement check(database, "PRAGMA integrity_check(20)");
    while (check.executeStep()) {
      const std::string line = check.getColumn(0).getString();
      if (line != "ok") report.structure.push_back(line);
    }
    for (const Table& table : tables()) {
      report.damaged_rows +=
          static_cast<int>(number(database, fmt::format("SELECT count(*) FROM {0} WHERE NOT ({1})",
                                                        table.name, sound(table, table.name))));
    }
    for (const std::string_view rows : orphans()) {
      report.orphaned_rows +=
          static_cast<int>(number(database, fmt::format("SELECT count(*) FROM {}", rows)));
    }
    return report;
  });
}

Result<Rebuilt> rebuild(const std::string& path, const StoreOptions& options) {
  const auto seen = identify(path);
  if (!seen || !(is_empty_file(path) || looks_like_cache(path))) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "cache-foreign-file",
                 .message = fmt::format("`{}` is not an Attune cache", path)};
  }
  if (const int version = stated_version(path).value_or(0); version > kSchemaVersion)
    return from_the_future(path, version);
  const std::map<std::string, int> before = row_counts(path);
  ATT_TRY(const bool mine, set_aside(path, *seen));
  if (!mine) return Rebuilt{};
  ATT_CHECK(create(path, options));
  ATT_TRY(const SetAside carried, carry_over(path, options));
  Rebuilt rebuilt{.rows = carried.rows};
  std::map<std::string, int> after = row_counts(path);
  for (const Table& table : tables()) {
    const std::string name(table.name);
    const auto had = before.find(name);
    if (had == before.end()) {
      rebuilt.uncounted.push_back(name);
    } else if (had->second > after[name]) {
      rebuilt.lost[name] = had->second - after[name];
    }
  }
  return rebuilt;
}

Result<GcReport> collect_garbage(const std::string& path, const GcOptions& options) {
  const std::int64_t bytes_before = file_bytes(path);
  auto report = with_database<GcReport>(path, {}, [&](SQLite::Database& database) {
    GcReport done;
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    done.orphaned_images = database.exec(
        "DELETE FROM cubin WHERE pinned = 0 AND hash NOT IN (SELECT cubin FROM build)");
    const std::int64_t now = unix_milliseconds();
    done.leases = database.exec(
        fmt::format("DELETE FROM lease WHERE expires_at <= {0} OR taken_at > {0}", now));
    if (options.limit_bytes > 0) done.evicted_images = evict(database, options.limit_bytes, "");
    transaction.commit();
    database.exec("PRAGMA incremental_vacuum");
    return done;
  });
  if (!report.ok()) return report;
  report->temporary_files = remove_temporary_files(path);
  report->bytes_before = bytes_before;
  report->bytes_after = file_bytes(path);
  return report;
}

}  // namespace attune::cache
