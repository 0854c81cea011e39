#include "cache/store.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "cache/keys.hpp"
#include "cache/maintenance.hpp"
#include "cache/query.hpp"
#include "cache/rows.hpp"
#include "cache/store_file.hpp"

namespace attune {
namespace {

using cache::insert_row;
using cache::table;

// Code that is used daily is marked used once a day: eviction needs no more, and reads stay reads.
constexpr std::int64_t kTouchAfterSeconds = 24 * 3600;

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
  insert(database, "problem", cache::problem_digest(key), key.spec_hash, cache::pass_name(key.pass),
         s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len);
  const MaskData& data = key.data;
  if (!data.label.empty() || data.live >= 0) {
    insert(database, "mask_data", cache::problem_digest(key), data.label, data.live, data.full);
  }
  if (data.lengths != LengthClass{}) {
    insert(database, "length_data", cache::problem_digest(key), data.lengths.longest,
           data.lengths.filled, data.lengths.page_size);
  }
}

// The text that the file knows for a spec's hash; empty: none.
std::string known_text(SQLite::Database& database, const std::string& spec_hash) {
  SQLite::Statement row(database, fmt::format("SELECT text FROM spec WHERE hash = ?1 AND {}",
                                              cache::sound(table("spec"), "")));
  row.bind(1, spec_hash);
  return row.executeStep() ? row.getColumn(0).getString() : "";
}

// `key` is a BuildKey or a MeasurementKey.
template <typename Key>
bool is_another_spec(SQLite::Database& database, const Key& key) {
  if (key.spec_text.empty()) return false;
  const std::string known = known_text(database, key.spec_hash);
  return !known.empty() && known != key.spec_text;
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

bool is_untrusted(const Status& status) {
  return !status.ok() && status.error().id == "cache-untrusted";
}

class SqliteStore final : public Store {
 public:
  SqliteStore(std::string path, StoreOptions options)
      : file_(std::move(path), std::move(options)) {}

  Status open() { return file_.open(); }

  const std::string& path() const override { return file_.path(); }
  StoreHealth health() const override { return file_.health(); }

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
  // f(database, health), or an empty T where the file means another spec by the key's hash.
  template <typename T, typename Key, typename F>
  Result<T> read_of(const Key& key, F f) const {
    bool collides = false;
    Result<T> result = file_.read<T>([&](cache::Connection& database, StoreHealth& health) {
      collides = is_another_spec(database, key);
      return collides ? T{} : f(database, health);
    });
    if (collides) file_.warn(collision(key.spec_hash));
    return result;
  }
  // f(database) in a transaction that also says what the key's hash stands for.
  template <typename Key, typename F>
  Status write_of(const Key& key, F f) {
    return file_.write<Unit>([&](SQLite::Database& database, StoreHealth&) -> Status {
      if (is_another_spec(database, key)) return collision(key.spec_hash);
      if (!key.spec_text.empty()) insert(database, "spec", key.spec_hash, key.spec_text);
      f(database);
      return ok_status();
    });
  }
  Error collision(const std::string& spec_hash) const {
    return {
        .id = "cache-hash-collision",
        .message = fmt::format(
            "cache `{}` knows another spec by the hash {}; nothing is read or stored for this one",
            path(), spec_hash)};
  }
  // Every kernel would say the same.
  void warn_once(const Error& error) const {
    if (!warned_.exchange(true)) file_.warn(error);
  }
  void touch(const std::string& cubin, std::int64_t last_used) const;

  cache::StoreFile file_;
  mutable std::atomic<bool> warned_ = false;
};

Result<std::optional<CodeRecord>> SqliteStore::find_code(const BuildKey& key) const {
  std::string cubin;
  std::int64_t last_used = 0;
  bool damaged = false;
  Status trusted = ok_status();
  const auto find = [&](cache::Connection& db, StoreHealth& health) -> std::optional<CodeRecord> {
    SQLite::Statement row(
        db,
        fmt::format(
            "SELECT c.image, c.registers, c.spill_store_bytes, c.spill_load_bytes, c.stack_bytes, "
            "c.static_shared_bytes, b.compile_seconds, c.hash, c.last_used, {}, {} "
            "FROM build b JOIN cubin c ON c.hash = b.cubin WHERE b.candidate = ?",
            cache::sound(table("cubin"), "c"), cache::sound(table("build"), "b")));
    row.bind(1, key.digest());
    if (!row.executeStep()) return std::nullopt;
    trusted = db.check_code();
    if (!trusted.ok()) return std::nullopt;
    if (row.getColumn(9).getInt() == 0 || row.getColumn(10).getInt() == 0) {
      damaged = true;
      ++health.damaged_rows;
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
  };
  auto found = read_of<std::optional<CodeRecord>>(key, find);
  if (damaged) {
    file_.warn({.id = "cache-damaged-code",
                .message = fmt::format("code in cache `{}` fails its hash and is compiled again",
                                       path())});
  }
  if (!trusted.ok()) warn_once(trusted.error());
  if (found.ok() && found->has_value()) touch(cubin, last_used);
  return found;
}

void SqliteStore::touch(const std::string& cubin, std::int64_t last_used) const {
  const std::int64_t now = cache::unix_milliseconds() / 1000;
  if (file_.options().read_only || now - last_used < kTouchAfterSeconds) return;
  // Whether it succeeds matters to nobody; a busy file is not waited for longer than usual.
  (void)file_.write<Unit>([&](SQLite::Database& db, StoreHealth&) {
    SQLite::Statement update(db, "UPDATE cubin SET last_used = max(last_used, ?2) WHERE hash = ?1");
    update.bind(1, cubin);
    update.bind(2, now);
    update.exec();
    return Unit{};
  });
}

Status SqliteStore::put_code(const BuildKey& key, const CodeRecord& code) {
  if (Status trusted = file_.check_code(); is_untrusted(trusted)) {
    warn_once(trusted.error());
    return trusted;
  }
  const std::string hash = cache::content_hash(code.image);
  const std::int64_t now = cache::unix_milliseconds() / 1000;
  return write_of(key, [&](SQLite::Database& db) {
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
    const std::int64_t limit = file_.options().size_limit_bytes;
    if (limit > 0) cache::evict(db, limit, hash);
  });
}

Result<bool> SqliteStore::pin_code(const BuildKey& key, bool pinned) {
  return file_.write<bool>([&](SQLite::Database& db, StoreHealth&) {
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
  return write_of(key, [&](SQLite::Database& db) {
    insert_env_and_problem(db, key);
    insert(db, "candidate", candidate, key.spec_hash, m.plan, "", m.compiler, "");
    insert(db, "measurement", cache::make_uuid(), cache::env_digest(key),
           cache::problem_digest(key), candidate, m.median_us, m.spread_us, m.samples, m.threads,
           m.registers, m.shared_bytes, m.measured_at.empty() ? cache::utc_now() : m.measured_at,
           m.conditions);
  });
}

Status SqliteStore::reject(const MeasurementKey& key, const Rejection& r) {
  const std::string candidate = cache::candidate_digest(key.spec_hash, r.plan, r.build_digest);
  return write_of(key, [&](SQLite::Database& db) {
    insert_env_and_problem(db, key);
    insert(db, "candidate", candidate, key.spec_hash, r.plan, "", "", "");
    insert(db, "quarantine", cache::env_digest(key), cache::problem_digest(key), candidate,
           r.reason, r.detail, cache::utc_now());
  });
}

Result<std::vector<Measurement>> SqliteStore::measurements(const MeasurementKey& key) const {
  const auto read = [&](SQLite::Database& db, StoreHealth& health) {
    std::vector<Measurement> result;
    for (auto& row : cache::read_measurements(db, key.spec_hash, &health.damaged_rows)) {
      if (row.device == key.device && row.pass == key.pass && row.shape == key.shape &&
          row.protocol == key.protocol && row.data.label == key.data.label) {
        result.push_back(std::move(row.measurement));
      }
    }
    return result;
  };
  return read_of<std::vector<Measurement>>(key, read);
}

Result<std::vector<Rejection>> SqliteStore::rejections(const MeasurementKey& key) const {
  const auto read = [&](SQLite::Database& db, StoreHealth& health) {
    std::vector<Rejection> result;
    for (auto& row : cache::read_rejections(db, key.spec_hash, &health.damaged_rows)) {
      if (row.pass == key.pass && cache::rejects(row, key.device, key.shape))
        result.push_back(std::move(row.rejection));
    }
    return result;
  };
  return read_of<std::vector<Rejection>>(key, read);
}

Result<std::optional<Winner>> SqliteStore::winner(const MeasurementKey& key) const {
  const auto read = [&](SQLite::Database& db, StoreHealth& health) -> std::optional<Winner> {
    const auto rows = cache::read_measurements(db, key.spec_hash, &health.damaged_rows);
    const auto rejected = cache::read_rejections(db, key.spec_hash, &health.damaged_rows);
    auto all = cache::winners(rows, rejected, key.device);
    std::erase_if(all, [&](const ProblemWinner& one) { return one.pass != key.pass; });
    const ProblemWinner* best = cache::nearest(all, key.shape, key.data);
    if (best == nullptr) return std::nullopt;
    return on_data(best->winner, key.data);
  };
  return read_of<std::optional<Winner>>(key, read);
}

Result<std::vector<ProblemWinner>> SqliteStore::winners(const std::string& device) const {
  return file_.read<std::vector<ProblemWinner>>([&](SQLite::Database& db, StoreHealth& health) {
    const auto rows = cache::read_measurements(db, "", &health.damaged_rows);
    const auto rejected = cache::read_rejections(db, "", &health.damaged_rows);
    return cache::winners(rows, rejected, device);
  });
}

Result<std::vector<BuildKey>> SqliteStore::stored_builds(const std::string& spec_hash) const {
  return file_.read<std::vector<BuildKey>>([&](SQLite::Database& db, StoreHealth& health) {
    return cache::read_builds(db, spec_hash, &health.damaged_rows);
  });
}

Result<bool> SqliteStore::take_lease(const std::string& name, double seconds) {
  if (is_untrusted(file_.check_code())) return true;
  const std::string self = lease_owner();
  return file_.write<bool>([&](SQLite::Database& db, StoreHealth&) {
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
  return file_.write<Unit>([&](SQLite::Database& db, StoreHealth&) {
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

Result<std::unique_ptr<Store>> open_writable_store(const std::string& path) {
  ATT_TRY(std::unique_ptr<Store> store, open_store(path));
  const std::string why = store->health().not_written;
  if (!why.empty()) return Error{.id = "cache-read-only", .message = why};
  return store;
}

std::string default_store_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string path = variable("ATTUNE_CACHE"); !path.empty()) return path == "none" ? "" : path;
  // The working directory is anybody's: nothing is looked for there.
  if (const std::string base = variable("XDG_CACHE_HOME"); base.starts_with('/'))
    return base + "/attune/attune.db";
  if (const std::string home = variable("HOME"); home.starts_with('/'))
    return home + "/.cache/attune/attune.db";
  return "";
}

}  // namespace attune
