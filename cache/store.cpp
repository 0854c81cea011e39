#include "cache/store.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "cache/database.hpp"
#include "cache/file.hpp"
#include "cache/keys.hpp"
#include "cache/maintenance.hpp"
#include "cache/query.hpp"
#include "cache/rows.hpp"
#include "cache/salvage.hpp"

namespace attune {
namespace {

using cache::FileIdentity;
using cache::insert_row;
using cache::table;

// Code that is used daily is marked used once a day: eviction needs no more, and reads stay reads.
constexpr std::int64_t kTouchAfterSeconds = 24 * 3600;

// Each round lost is another process that renewed the file in between; more in a row is something
// else.
constexpr int kOpenRounds = 16;

template <typename... Values>
void insert(SQLite::Database& database, std::string_view name, const Values&... values) {
  SQLite::Statement statement(database, insert_row(table(name)));
  int index = 0;
  (statement.bind(++index, values), ...);
  statement.exec();
}

void insert_env_and_problem(SQLite::Database& database, const MeasurementKey& key) {
  const ProblemShape& s = key.shape;
  insert(database, "env", cache::env_digest(key), key.device,
         std::string(cache::hardware_of(key.device)), key.protocol);
  insert(database, "problem", cache::problem_digest(key), key.spec_hash, s.batch, s.heads,
         s.kv_heads, s.q_len, s.kv_len);
}

// "host:pid"; whether its process lives can be asked on the same host.
std::string lease_owner() {
  char host[256] = "unknown";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}:{}", host, getpid());
}

bool owner_is_gone(const std::string& owner) {
  const auto colon = owner.rfind(':');
  const std::string self = lease_owner();
  if (colon == std::string::npos || owner.substr(0, colon) != self.substr(0, self.rfind(':')))
    return false;
  const long pid = std::strtol(owner.c_str() + colon + 1, nullptr, 10);
  return pid <= 0 || (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
}

class SqliteStore final : public Store {
 public:
  SqliteStore(std::string path, StoreOptions options)
      : path_(std::move(path)), options_(std::move(options)) {}

  Status open() {
    const std::lock_guard lock(mutex_);
    return ensure_open();
  }

  const std::string& path() const override { return path_; }
  StoreHealth health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }

  Result<std::optional<CodeRecord>> find_code(const BuildKey& key) const override;
  Result<std::vector<BuildKey>> stored_builds(const std::string& spec_hash) const override;
  Status put_code(const BuildKey& key, const CodeRecord& code) override;
  Result<bool> pin_code(const BuildKey& key, bool pinned) override;
  Status record(const MeasurementKey& key, const Measurement& measurement) override;
  Status reject(const MeasurementKey& key, const Rejection& rejection) override;
  Result<std::vector<Measurement>> measurements(const MeasurementKey& key) const override;
  Result<std::vector<Rejection>> rejections(const MeasurementKey& key) const override;
  Result<std::optional<Winner>> winner(const MeasurementKey& key) const override;
  Result<std::vector<ProblemWinner>> winners(const std::string& device) const override;
  Result<bool> take_lease(const std::string& name, double seconds) override;
  Status give_lease(const std::string& name) override;

 private:
  // Runs f(database) with the file open; SQLite's exceptions end here. A damaged file is set aside
  // and f runs once more on the new one.
  template <typename T, typename F>
  Result<T> attempt(F f) const {
    const std::lock_guard lock(mutex_);
    for (int round = 0;; ++round) {
      ATT_CHECK(ensure_open());
      try {
        return Result<T>(f(*database_));
      } catch (const SQLite::Exception& exception) {
        Error error = cache::to_error(exception, path_);
        if (!cache::is_damage(exception) || options_.read_only || round > 0) return error;
        if (Status renewed = set_aside(error); !renewed.ok()) return renewed.error();
      } catch (const std::exception& exception) {
        return Error{.id = "cache-failed",
                     .message = fmt::format("cache `{}`: {}", path_, exception.what())};
      }
    }
  }
  template <typename T, typename F>
  Result<T> read(F f) const {
    Result<T> result = attempt<T>(f);
    if (!result.ok()) count(&StoreHealth::failed_reads);
    return result;
  }
  // f in one short write transaction.
  template <typename T, typename F>
  Result<T> write(F f) const {
    Result<T> result = attempt<T>([&](SQLite::Database& database) {
      SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
      T value = f(database);
      transaction.commit();
      return value;
    });
    if (!result.ok()) count(&StoreHealth::failed_writes);
    return result;
  }
  void count(int StoreHealth::* counter) const {
    const std::lock_guard lock(mutex_);
    ++(health_.*counter);
  }

  void warn(const Error& error) const {
    health_.last_warning = error.message;
    if (options_.warn) {
      options_.warn(error);
    } else {
      fmt::print(stderr, "attune: warning: {} [{}]\n", error.message, error.id);
    }
  }

  Status ensure_open() const;
  Status open_existing() const;
  Status set_aside(const Error& cause) const;
  void carry_over() const;
  void touch(const std::string& cubin, std::int64_t last_used) const;

  const std::string path_;
  const StoreOptions options_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<SQLite::Database> database_;
  mutable FileIdentity identity_;
  mutable std::string damage_;  // of the file that this process set aside
  mutable StoreHealth health_;
};

Status SqliteStore::ensure_open() const {
  const auto now = cache::identify(path_);
  if (database_ && now == identity_) return ok_status();
  // Another process set the file aside, or somebody removed or replaced it: follow the name.
  database_.reset();
  if (!now) {
    if (options_.read_only) {
      return Error{.id = "cache-absent", .message = fmt::format("there is no cache `{}`", path_)};
    }
    ATT_CHECK(cache::make_parent_directory(path_));
    ATT_CHECK(cache::create(path_, options_));
  }
  return open_existing();
}

// What the name stands for may change at any moment while other processes set files aside and begin
// new ones, so every conclusion is checked against the identity it was drawn from.
Status SqliteStore::open_existing() const {
  Error error{.id = "cache-io", .message = fmt::format("cannot open cache `{}`", path_)};
  for (int round = 0; round < kOpenRounds; ++round) {
    const auto seen = cache::identify(path_);
    if (!seen) {
      if (options_.read_only) return error;
      ATT_CHECK(cache::create(path_, options_));
      continue;
    }
    ATT_CHECK(cache::check_permissions(path_));
    health_.network = cache::on_network_filesystem(path_);
    error = {.id = "cache-damaged", .message = fmt::format("cache `{}` is damaged", path_)};
    bool damaged = true;
    try {
      auto database = cache::open_database(path_, options_, health_.network);
      const int application = database->execAndGet("PRAGMA application_id").getInt();
      const int version = database->execAndGet("PRAGMA user_version").getInt();
      if (application == cache::kApplicationId && version > cache::kSchemaVersion) {
        return Error{
            .kind = ErrorKind::kUnsupported,
            .id = "cache-from-the-future",
            .message = fmt::format("cache `{}` has schema version {}, this program knows {}", path_,
                                   version, cache::kSchemaVersion),
            .hint = "use a newer attune, or another file through --cache or ATTUNE_CACHE"};
      }
      const bool ours = cache::has_our_schema(*database) && application == cache::kApplicationId &&
                        version == cache::kSchemaVersion;
      if (ours && cache::identify(path_) == *seen) {
        database_ = std::move(database);
        identity_ = *seen;
        carry_over();
        return ok_status();
      }
    } catch (const SQLite::Exception& exception) {
      error = cache::to_error(exception, path_);
      damaged = cache::is_damage(exception);
    }
    if (cache::identify(path_) != *seen) continue;
    if (!damaged || options_.read_only) return error;
    if (cache::is_empty_file(path_)) {
      ATT_CHECK(cache::create(path_, options_));
    } else if (cache::looks_like_cache(path_)) {
      identity_ = *seen;
      ATT_CHECK(set_aside(error));
      if (database_) return ok_status();
    } else if (cache::identify(path_) == *seen) {
      return Error{
          .kind = ErrorKind::kBadInput,
          .id = "cache-foreign-file",
          .message = fmt::format("`{}` is not an Attune cache; it was left as it is", path_)};
    }
  }
  return error;
}

// Takes the file that identity_ names away and opens a new one, which begins with what is sound in
// it.
Status SqliteStore::set_aside(const Error& cause) const {
  database_.reset();
  ATT_TRY(const bool mine, cache::set_aside(path_, identity_));
  if (!mine) return ok_status();
  ++health_.set_aside;
  damage_ = cause.message;
  ATT_CHECK(cache::create(path_, options_));
  return ensure_open();
}

// Of a file that was set aside, by this process or by one that did not get to the end of it.
void SqliteStore::carry_over() const {
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
  warn({.id = "cache-damaged", .message = damage + "; " + what});
}

Result<std::optional<CodeRecord>> SqliteStore::find_code(const BuildKey& key) const {
  std::string cubin;
  std::int64_t last_used = 0;
  bool damaged = false;
  auto found = read<std::optional<CodeRecord>>([&](SQLite::Database& db)
                                                   -> std::optional<CodeRecord> {
    SQLite::Statement row(
        db,
        fmt::format(
            "SELECT c.image, c.registers, c.spill_store_bytes, c.spill_load_bytes, c.stack_bytes, "
            "c.static_shared_bytes, b.compile_seconds, c.hash, c.last_used, {}, {} "
            "FROM build b JOIN cubin c ON c.hash = b.cubin WHERE b.candidate = ?",
            cache::sound(table("cubin"), "c"), cache::sound(table("build"), "b")));
    row.bind(1, key.digest());
    if (!row.executeStep()) return std::nullopt;
    if (row.getColumn(9).getInt() == 0 || row.getColumn(10).getInt() == 0) {
      damaged = true;
      return std::nullopt;
    }
    const SQLite::Column image = row.getColumn(0);
    const auto* bytes = static_cast<const std::uint8_t*>(image.getBlob());
    cubin = row.getColumn(7).getString();
    last_used = row.getColumn(8).getInt64();
    return CodeRecord{.image = {bytes, bytes + image.getBytes()},
                      .registers = row.getColumn(1).getInt(),
                      .spill_store_bytes = row.getColumn(2).getInt(),
                      .spill_load_bytes = row.getColumn(3).getInt(),
                      .stack_bytes = row.getColumn(4).getInt(),
                      .static_shared_bytes = row.getColumn(5).getInt(),
                      .compile_seconds = row.getColumn(6).getDouble()};
  });
  if (damaged) {
    const std::lock_guard lock(mutex_);
    ++health_.damaged_rows;
    warn(
        {.id = "cache-damaged-code",
         .message = fmt::format("code in cache `{}` fails its hash and is compiled again", path_)});
  }
  if (found.ok() && found->has_value()) touch(cubin, last_used);
  return found;
}

void SqliteStore::touch(const std::string& cubin, std::int64_t last_used) const {
  const std::int64_t now = cache::unix_milliseconds() / 1000;
  if (options_.read_only || now - last_used < kTouchAfterSeconds) return;
  // Whether it succeeds matters to nobody; a busy file is not waited for longer than usual.
  (void)write<Unit>([&](SQLite::Database& db) {
    SQLite::Statement update(db, "UPDATE cubin SET last_used = max(last_used, ?2) WHERE hash = ?1");
    update.bind(1, cubin);
    update.bind(2, now);
    update.exec();
    return Unit{};
  });
}

Status SqliteStore::put_code(const BuildKey& key, const CodeRecord& code) {
  const std::string hash = cache::content_hash(code.image);
  const std::int64_t now = cache::unix_milliseconds() / 1000;
  return write<Unit>([&](SQLite::Database& db) {
    insert(db, "candidate", key.digest(), key.spec_hash, key.plan, key.body_hash, key.compiler,
           key.target);
    SQLite::Statement cubin(db, insert_row(table("cubin")));
    cubin.bind(1, hash);
    cubin.bind(2, static_cast<std::int64_t>(code.image.size()));
    cubin.bind(3, code.registers);
    cubin.bind(4, code.spill_store_bytes);
    cubin.bind(5, code.spill_load_bytes);
    cubin.bind(6, code.stack_bytes);
    cubin.bind(7, code.static_shared_bytes);
    cubin.bind(8, now);
    cubin.bind(9, 0);
    cubin.bindNoCopy(10, code.image.empty() ? "" : static_cast<const void*>(code.image.data()),
                     static_cast<int>(code.image.size()));
    cubin.exec();
    insert(db, "build", key.digest(), hash, code.compile_seconds);
    if (options_.size_limit_bytes > 0) cache::evict(db, options_.size_limit_bytes, hash);
    return Unit{};
  });
}

Result<bool> SqliteStore::pin_code(const BuildKey& key, bool pinned) {
  return write<bool>([&](SQLite::Database& db) {
    SQLite::Statement update(
        db,
        "UPDATE cubin SET pinned = ?2 WHERE hash = (SELECT cubin FROM build WHERE candidate = ?1)");
    update.bind(1, key.digest());
    update.bind(2, pinned ? 1 : 0);
    return update.exec() > 0;
  });
}

Status SqliteStore::record(const MeasurementKey& key, const Measurement& m) {
  if (!std::isfinite(m.median_us) || m.median_us <= 0 || !std::isfinite(m.spread_us) ||
      m.spread_us < 0) {
    return Error{.kind = ErrorKind::kBadInput,
                 .id = "cache-bad-measurement",
                 .message = fmt::format("a median of {} us and a spread of {} us is no measurement",
                                        m.median_us, m.spread_us)};
  }
  const std::string candidate = cache::candidate_digest(key.spec_hash, m.plan, m.build_digest);
  return write<Unit>([&](SQLite::Database& db) {
    insert_env_and_problem(db, key);
    insert(db, "candidate", candidate, key.spec_hash, m.plan, "", m.compiler, "");
    insert(db, "measurement", cache::make_uuid(), cache::env_digest(key),
           cache::problem_digest(key), candidate, m.median_us, m.spread_us, m.samples, m.threads,
           m.registers, m.shared_bytes, m.measured_at.empty() ? cache::utc_now() : m.measured_at,
           m.conditions);
    return Unit{};
  });
}

Status SqliteStore::reject(const MeasurementKey& key, const Rejection& r) {
  const std::string candidate = cache::candidate_digest(key.spec_hash, r.plan, r.build_digest);
  return write<Unit>([&](SQLite::Database& db) {
    insert_env_and_problem(db, key);
    insert(db, "candidate", candidate, key.spec_hash, r.plan, "", "", "");
    insert(db, "quarantine", cache::env_digest(key), cache::problem_digest(key), candidate,
           r.reason, r.detail, cache::utc_now());
    return Unit{};
  });
}

Result<std::vector<Measurement>> SqliteStore::measurements(const MeasurementKey& key) const {
  return read<std::vector<Measurement>>([&](SQLite::Database& db) {
    std::vector<Measurement> result;
    for (auto& row : cache::read_measurements(db, key.spec_hash, &health_.damaged_rows)) {
      if (row.device == key.device && row.shape == key.shape && row.protocol == key.protocol) {
        result.push_back(std::move(row.measurement));
      }
    }
    return result;
  });
}

Result<std::vector<Rejection>> SqliteStore::rejections(const MeasurementKey& key) const {
  return read<std::vector<Rejection>>([&](SQLite::Database& db) {
    std::vector<Rejection> result;
    for (auto& row : cache::read_rejections(db, key.spec_hash, &health_.damaged_rows)) {
      if (cache::rejects(row, key.device, key.shape)) result.push_back(std::move(row.rejection));
    }
    return result;
  });
}

Result<std::optional<Winner>> SqliteStore::winner(const MeasurementKey& key) const {
  return read<std::optional<Winner>>([&](SQLite::Database& db) -> std::optional<Winner> {
    const auto rows = cache::read_measurements(db, key.spec_hash, &health_.damaged_rows);
    const auto rejected = cache::read_rejections(db, key.spec_hash, &health_.damaged_rows);
    const auto all = cache::winners(rows, rejected, key.device);
    const ProblemWinner* best = cache::nearest(all, key.shape);
    if (best == nullptr) return std::nullopt;
    return best->winner;
  });
}

Result<std::vector<ProblemWinner>> SqliteStore::winners(const std::string& device) const {
  return read<std::vector<ProblemWinner>>([&](SQLite::Database& db) {
    const auto rows = cache::read_measurements(db, "", &health_.damaged_rows);
    const auto rejected = cache::read_rejections(db, "", &health_.damaged_rows);
    return cache::winners(rows, rejected, device);
  });
}

Result<std::vector<BuildKey>> SqliteStore::stored_builds(const std::string& spec_hash) const {
  return read<std::vector<BuildKey>>([&](SQLite::Database& db) {
    return cache::read_builds(db, spec_hash, &health_.damaged_rows);
  });
}

Result<bool> SqliteStore::take_lease(const std::string& name, double seconds) {
  const std::string self = lease_owner();
  return write<bool>([&](SQLite::Database& db) {
    const std::int64_t now = cache::unix_milliseconds();
    SQLite::Statement held(db, "SELECT owner, taken_at, expires_at FROM lease WHERE name = ?");
    held.bind(1, name);
    if (held.executeStep()) {
      const std::string owner = held.getColumn(0).getString();
      const bool in_force =
          held.getColumn(1).getInt64() <= now && held.getColumn(2).getInt64() > now;
      if (in_force && owner != self && !owner_is_gone(owner)) return false;
    }
    SQLite::Statement take(
        db, "INSERT OR REPLACE INTO lease (name, owner, taken_at, expires_at) VALUES (?, ?, ?, ?)");
    take.bind(1, name);
    take.bind(2, self);
    take.bind(3, now);
    take.bind(4, now + static_cast<std::int64_t>(seconds * 1000));
    take.exec();
    return true;
  });
}

Status SqliteStore::give_lease(const std::string& name) {
  return write<Unit>([&](SQLite::Database& db) {
    SQLite::Statement give(db, "DELETE FROM lease WHERE name = ? AND owner = ?");
    give.bind(1, name);
    give.bind(2, lease_owner());
    give.exec();
    return Unit{};
  });
}

}  // namespace

Result<std::unique_ptr<Store>> open_store(const std::string& path, const StoreOptions& options) {
  auto store = std::make_unique<SqliteStore>(path, options);
  ATT_CHECK(store->open());
  return std::unique_ptr<Store>(std::move(store));
}

std::string default_store_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string path = variable("ATTUNE_CACHE"); !path.empty()) return path;
  if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty())
    return base + "/attune/attune.db";
  if (const std::string home = variable("HOME"); !home.empty())
    return home + "/.cache/attune/attune.db";
  return "attune.db";
}

}  // namespace attune
