#include "cache/store_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cache/maintenance.hpp"
#include "cache/salvage.hpp"
#include "cache/versions.hpp"
#include "cache/warning.hpp"

namespace attune::cache {
namespace {

// Each round lost is another process that renewed the file in between; more in a row is something
// else.
constexpr int kOpenRounds = 16;

Error foreign(const std::string& path) {
  return {.kind = ErrorKind::kBadInput,
          .id = "cache-foreign-file",
          .message = fmt::format("`{}` is not an Attune cache; it was left as it is", path)};
}

}  // namespace

Error from_the_future(const std::string& path, int version) {
  return {.kind = ErrorKind::kUnsupported,
          .id = "cache-from-the-future",
          .message = fmt::format(
              "cache `{}` has schema version {}, this program knows {}; it was left as it is", path,
              version, kSchemaVersion),
          .hint = "use a newer attune, or another file through --cache or ATTUNE_CACHE"};
}

void StoreFile::say(const Error& error) const {
  health_.last_warning = error.message;
  give_warning(options_, error);
}

Status StoreFile::check_code() const {
  const std::lock_guard lock(mutex_);
  ATT_CHECK(ensure_open());
  Status status = database_->check_code();
  health_.code_refused = status.ok() ? "" : status.error().message;
  return status;
}

Status StoreFile::ensure_open() const {
  const auto now = identify(path_);
  if (database_ && now == identity_ && !is_out_of_date()) return ok_status();
  // Another process set the file aside, or somebody removed or replaced it: follow the name.
  database_.reset();
  if (!now) {
    if (options_.read_only) {
      return Error{.id = "cache-absent", .message = fmt::format("there is no cache `{}`", path_)};
    }
    ATT_CHECK(make_parent_directory(path_));
    ATT_CHECK(create(path_, options_));
  }
  return open_existing();
}

// What the name stands for may change at any moment while other processes set files aside and begin
// new ones, so every conclusion is checked against the identity it was drawn from.
Status StoreFile::open_existing() const {
  Error error{.id = "cache-io", .message = fmt::format("cannot open cache `{}`", path_)};
  for (int round = 0; round < kOpenRounds; ++round) {
    const auto seen = identify(path_);
    if (!seen) {
      if (options_.read_only) return error;
      ATT_CHECK(create(path_, options_));
      continue;
    }
    ATT_CHECK(check_regular(path_));
    health_.network = on_network_filesystem(path_);
    error = {.id = "cache-damaged", .message = fmt::format("cache `{}` is damaged", path_)};
    bool damaged = true;
    try {
      auto database = open_database(path_, options_, health_.network);
      const int application = database->execAndGet("PRAGMA application_id").getInt();
      const int version = database->execAndGet("PRAGMA user_version").getInt();
      if (application == kApplicationId && version > kSchemaVersion)
        return from_the_future(path_, version);
      const bool ours = application == kApplicationId && has_schema(*database, version);
      if (ours && identify(path_) == *seen && identify(database->held_path()) == *seen) {
        adopt(*database, version);
        database_ = std::move(database);
        identity_ = *seen;
        const Status code = database_->check_code();
        health_.code_refused = code.ok() ? "" : code.error().message;
        carry_over();
        return ok_status();
      }
    } catch (const SQLite::Exception& exception) {
      error = to_error(exception, path_);
      damaged = is_damage(exception);
    }
    if (identify(path_) != *seen) continue;
    if (!damaged) return error;
    const int version = stated_version(path_).value_or(0);
    const bool is_empty = is_empty_file(path_), is_cache = looks_like_cache(path_);
    if (identify(path_) != *seen) continue;
    if (version > kSchemaVersion) return from_the_future(path_, version);
    if (is_empty && !options_.read_only) {
      ATT_CHECK(create(path_, options_));
    } else if (!is_cache) {
      return foreign(path_);
    } else if (options_.read_only) {
      return error;
    } else {
      identity_ = *seen;
      ATT_CHECK(renew(error));
      if (database_) return ok_status();
    }
  }
  return error;
}

// Another process migrated a file that this one reads as it was.
bool StoreFile::is_out_of_date() const {
  if (version_ == kSchemaVersion) return false;
  try {
    return database_->execAndGet("PRAGMA user_version").getInt() != version_;
  } catch (const SQLite::Exception&) {
    return true;
  }
}

// A file of an older version is migrated when it may be written, else read as it is.
void StoreFile::adopt(SQLite::Database& database, int version) const {
  version_ = version;
  if (version == kSchemaVersion) return;
  if (!options_.read_only) {
    try {
      migrate(database);
      version_ = kSchemaVersion;
      return;
    } catch (const SQLite::Exception& exception) {
      if (is_damage(exception)) throw;
      say(to_error(exception, path_));
    }
  }
  show_as_current(database, version);
}

// Takes the file that identity_ names away and opens a new one, which begins with what is sound in
// it.
Status StoreFile::renew(const Error& cause) const {
  database_.reset();
  ATT_TRY(const bool mine, set_aside(path_, identity_));
  if (!mine) return ok_status();
  ++health_.set_aside;
  damage_ = cause.message;
  ATT_CHECK(create(path_, options_));
  return ensure_open();
}

// Of a file that was set aside, by this process or by one that did not get to the end of it.
void StoreFile::carry_over() const {
  if (options_.read_only) return;
  const auto done = cache::carry_over(path_, options_);
  if (done.ok() && done->names.empty()) return;
  const std::string damage =
      damage_.empty() ? fmt::format("cache `{}` was damaged", path_) : std::exchange(damage_, {});
  const std::string what =
      done.ok() ? fmt::format("it was set aside as `{}` and a new one begun with {} of its rows",
                              fmt::join(done->names, "`, `"), done->rows)
                : fmt::format(
                      "it was set aside, and what is sound in it will be carried over when "
                      "the cache is next opened: {}",
                      done.error().message);
  say({.id = "cache-damaged", .message = damage + "; " + what});
}

}  // namespace attune::cache
