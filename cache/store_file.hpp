// A cache file as one process has it open: found, checked, migrated, set aside when it is damaged.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "cache/database.hpp"
#include "cache/file.hpp"
#include "cache/store.hpp"

namespace attune::cache {

Error from_the_future(const std::string& path, int version);

// Thread-safe. Nothing throws.
class StoreFile {
 public:
  StoreFile(std::string path, StoreOptions options)
      : path_(std::move(path)), options_(std::move(options)) {}

  Status open() const {
    const std::lock_guard lock(mutex_);
    return ensure_open();
  }

  const std::string& path() const { return path_; }
  const StoreOptions& options() const { return options_; }
  StoreHealth health() const {
    const std::lock_guard lock(mutex_);
    StoreHealth health = health_;
    if (database_ && !options_.read_only) {
      const Status writable = database_->check_writable();
      if (!writable.ok()) health.not_written = writable.error().message;
    }
    return health;
  }

  // f(database, health) with the file open, as T or Result<T>.
  template <typename T, typename F>
  Result<T> read(F f) const {
    Result<T> result = attempt<T>(f);
    if (!result.ok()) count(&StoreHealth::failed_reads);
    return result;
  }
  // The same in one short write transaction, which an error rolls back.
  template <typename T, typename F>
  Result<T> write(F f) const {
    Result<T> result = attempt<T>([&](SQLite::Database& database, StoreHealth& health) {
      SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
      Result<T> value = f(database, health);
      if (value.ok()) transaction.commit();
      return value;
    });
    if (!result.ok()) count(&StoreHealth::failed_writes);
    return result;
  }

  // Whether the file's code may be run, at this moment: HeldFile::check_code(). Counts no failure.
  Status check_code() const;

  void warn(const Error& error) const {
    const std::lock_guard lock(mutex_);
    say(error);
  }

 private:
  // SQLite's exceptions end here. A damaged file is set aside and f runs once more on the new one.
  template <typename T, typename F>
  Result<T> attempt(F f) const {
    const std::lock_guard lock(mutex_);
    for (int round = 0;; ++round) {
      ATT_CHECK(ensure_open());
      try {
        return Result<T>(f(*database_, health_));
      } catch (const SQLite::Exception& exception) {
        Error error = to_error(exception, path_);
        if (!is_damage(exception) || options_.read_only || round > 0) return error;
        if (Status renewed = renew(error); !renewed.ok()) return renewed.error();
      } catch (const std::exception& exception) {
        return Error{.id = "cache-failed", .message = "cache `" + path_ + "`: " + exception.what()};
      }
    }
  }
  void count(int StoreHealth::* counter) const {
    const std::lock_guard lock(mutex_);
    ++(health_.*counter);
  }
  // What follows is called with the mutex held.
  void say(const Error& error) const;
  Status ensure_open() const;
  Status open_existing() const;
  bool is_out_of_date() const;
  void adopt(SQLite::Database& database, int version) const;
  Status renew(const Error& cause) const;
  void carry_over() const;

  const std::string path_;
  const StoreOptions options_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Connection> database_;
  mutable FileIdentity identity_;
  mutable int version_ = 0;     // of the file's schema, as the connection reads it
  mutable std::string damage_;  // of the file that this process set aside
  mutable StoreHealth health_;
};

}  // namespace attune::cache
