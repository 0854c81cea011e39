#include "cache/salvage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <variant>

#include "cache/database.hpp"
#include "cache/file.hpp"
#include "cache/keys.hpp"
#include "cache/rows.hpp"
#include "cache/versions.hpp"

// The layout decoded here is https://www.sqlite.org/fileformat2.html, sections 1.5, 1.6 and 2.1: a
// cell of a table's leaf is (payload length, rowid, record), a record is (header length, serial
// types, values), and what does not fit in the page goes on in a chain of overflow pages.
namespace attune::cache {
namespace {

using Value = std::variant<std::monostate, std::int64_t, double, std::string>;
using Row = std::vector<Value>;

// Every table's first column is a hash of 32 digits or a UUID of 36: the first serial type of a
// record.
constexpr std::uint8_t kHashType = 32 * 2 + 13;
constexpr std::uint8_t kUuidType = 36 * 2 + 13;
// No image is larger; a length above is damage.
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{256} << 20;

std::size_t column_count(const Table& table) {
  return table.summed.size() + 1 + table.unsummed.size();
}

// Of any version.
bool is_some_tables(std::size_t columns) {
  return std::ranges::any_of(tables(),
                             [&](const Table& t) { return column_count(t) == columns; }) ||
         std::ranges::any_of(
             old_tables(), [&](const OldTable& old) { return column_count(old.table) == columns; });
}

class Pages {
 public:
  explicit Pages(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat info{};
    if (fd_ < 0 || fstat(fd_, &info) != 0) return;
    std::uint8_t header[100] = {};
    if (pread(fd_, header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return;
    const std::size_t stated = static_cast<std::size_t>(header[16]) << 8 | header[17];
    // 4096 is what this project's files have; believed against a header that says nonsense.
    page_bytes_ = stated >= 512 && std::has_single_bit(stated) ? stated : 4096;
    count_ = static_cast<std::uint32_t>(static_cast<std::size_t>(info.st_size) / page_bytes_);
  }
  ~Pages() {
    if (fd_ >= 0) close(fd_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  bool is_open() const { return fd_ >= 0; }
  std::size_t page_bytes() const { return page_bytes_; }
  std::uint32_t count() const { return count_; }
  // Pages count from 1.
  bool read(std::uint32_t page, std::string* bytes) const {
    if (page == 0 || page > count_) return false;
    bytes->resize(page_bytes_);
    return pread(fd_, bytes->data(), page_bytes_, static_cast<off_t>(page_bytes_) * (page - 1)) ==
           static_cast<ssize_t>(page_bytes_);
  }

 private:
  int fd_;
  std::size_t page_bytes_ = 4096;
  std::uint32_t count_ = 0;
};

std::uint8_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]);
}

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (char byte : bytes) value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

// Serial types fit in five bytes here: lengths are below 2^31.
std::optional<std::uint64_t> varint(std::string_view bytes, std::size_t* at) {
  std::uint64_t value = 0;
  for (int i = 0; i < 5 && *at < bytes.size(); ++i) {
    const std::uint8_t byte = byte_at(bytes, (*at)++);
    value = value << 7 | (byte & 0x7f);
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

std::uint64_t value_bytes(std::uint64_t type) {
  constexpr std::uint8_t kSizes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
  return type < 12 ? kSizes[type] : (type - 12) / 2;
}

Value decode(std::uint64_t type, std::string_view bytes) {
  if (type == 0) return std::monostate{};
  if (type == 7) return std::bit_cast<double>(big_endian(bytes));
  if (type == 8 || type == 9) return static_cast<std::int64_t>(type - 8);
  if (type < 7) {
    const auto unused_bits = static_cast<int>(64 - 8 * bytes.size());
    return static_cast<std::int64_t>(big_endian(bytes) << unused_bits) >> unused_bits;
  }
  return std::string(bytes);
}

// The record whose header starts at `at` of `page`, when there is one that any table could hold.
std::optional<Row> record_at(const Pages& pages, std::string_view page, std::size_t at) {
  const std::size_t header_bytes = byte_at(page, at);
  if (header_bytes < 4 || header_bytes > 64 || at + header_bytes > page.size()) return std::nullopt;
  const std::string_view header = page.substr(at, header_bytes);
  std::vector<std::uint64_t> types;
  std::uint64_t payload = header_bytes;
  for (std::size_t cursor = 1; cursor < header_bytes;) {
    const auto type = varint(header, &cursor);
    if (!type || *type == 10 || *type == 11) return std::nullopt;
    types.push_back(*type);
    payload += value_bytes(*type);
  }
  if (payload > kMaxPayloadBytes || !is_some_tables(types.size())) return std::nullopt;

  const std::uint64_t usable = pages.page_bytes();
  std::uint64_t local = payload;
  if (payload > usable - 35) {
    const std::uint64_t least = (usable - 12) * 32 / 255 - 23;
    local = least + (payload - least) % (usable - 4);
    if (local > usable - 35) local = least;
  }
  if (at + local + (local < payload ? 4 : 0) > page.size()) return std::nullopt;
  std::string bytes(page.substr(at, local));
  if (local < payload) {
    auto next = static_cast<std::uint32_t>(big_endian(page.substr(at + local, 4)));
    std::string overflow;
    while (bytes.size() < payload) {  // ends: every page adds bytes or fails
      if (!pages.read(next, &overflow)) return std::nullopt;
      next = static_cast<std::uint32_t>(big_endian(std::string_view(overflow).substr(0, 4)));
      bytes.append(overflow, 4, std::min<std::uint64_t>(usable - 4, payload - bytes.size()));
    }
  }
  Row row;
  std::size_t cursor = header_bytes;
  for (std::uint64_t type : types) {
    const std::size_t length = value_bytes(type);
    row.push_back(decode(type, std::string_view(bytes).substr(cursor, length)));
    cursor += length;
  }
  return row;
}

// Inserts rows into one table, after asking SQLite whether their sum holds.
class Sink {
 public:
  Sink(SQLite::Database& database, const Table& table)
      : Sink(database, table, insert_row(table), false) {}
  Sink(SQLite::Database& database, const OldTable& old)
      : Sink(database, old.table,
             insert_from(table(old.table.name), todays_rows(old, row_of(old.table))), true) {}

  bool take(const Row& row) {
    if (row.size() != column_count(table_)) return false;
    const std::size_t sum = table_.summed.size();
    check_.reset();
    insert_.reset();
    int parameter = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i != sum || with_sum_) bind(insert_, ++parameter, row[i], i);
      if (i <= sum) bind(check_, static_cast<int>(i) + 1, row[i], i);
    }
    if (!check_.executeStep() || check_.getColumn(0).getInt() == 0) return false;
    if (table_.name == "cubin" && !image_is_whole(row)) return false;
    insert_.exec();
    return true;
  }

 private:
  Sink(SQLite::Database& database, const Table& table, const std::string& insert, bool with_sum)
      : table_(table),
        with_sum_(with_sum),
        check_(database, check_sql(table)),
        insert_(database, insert) {}

  // A row of parameters.
  static std::string row_of(const Table& table) {
    std::string values;
    int parameter = 0;
    for (std::string_view column : table.summed)
      values += fmt::format("?{} AS {}, ", ++parameter, column);
    return fmt::format("(SELECT {}?{} AS sum)", values, parameter + 1);
  }
  static std::string check_sql(const Table& table) {
    std::string sql = fmt::format("SELECT att_sum('{}'", table.name);
    for (std::size_t i = 1; i <= table.summed.size(); ++i) sql += fmt::format(", ?{}", i);
    return sql + fmt::format(") = ?{}", table.summed.size() + 1);
  }
  void bind(SQLite::Statement& statement, int parameter, const Value& value,
            std::size_t column) const {
    // A whole number in a REAL column is stored as an integer.
    static const std::set<std::string_view> real{
        "median_us", "spread_us", "compile_seconds", "live", "full", "longest", "filled"};
    const bool is_real = column < table_.summed.size() && real.contains(table_.summed[column]);
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      is_real ? statement.bind(parameter, static_cast<double>(*integer))
              : statement.bind(parameter, *integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      statement.bind(parameter, *number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      const bool is_image = table_.name == "cubin" && column + 1 == column_count(table_);
      if (is_image) {
        statement.bind(parameter, static_cast<const void*>(text->data()),
                       static_cast<int>(text->size()));
      } else {
        statement.bind(parameter, *text);
      }
    } else {
      statement.bind(parameter);
    }
  }
  static bool image_is_whole(const Row& row) {
    const auto* hash = std::get_if<std::string>(&row.front());
    const auto* image = std::get_if<std::string>(&row.back());
    return hash != nullptr && image != nullptr &&
           content_hash({reinterpret_cast<const std::uint8_t*>(image->data()), image->size()}) ==
               *hash;
  }

  const Table& table_;
  const bool with_sum_;  // among the parameters of insert_
  SQLite::Statement check_, insert_;
};

}  // namespace

Result<int> salvage(const std::string& damaged, const std::string& into,
                    const StoreOptions& options, bool with_code) {
  ATT_TRY(const HeldFile held, HeldFile::hold(damaged));
  with_code = with_code && held.check_code().ok();
  try {
    const Pages pages(held.held_path());
    if (!pages.is_open()) {
      return Error{.id = "cache-io",
                   .message = fmt::format("cannot read damaged cache `{}`", damaged)};
    }
    const auto database = open_database(into, options, on_network_filesystem(into));
    SQLite::Transaction transaction(*database, SQLite::TransactionBehavior::IMMEDIATE);
    std::vector<std::unique_ptr<Sink>> sinks;
    for (const Table& table : tables()) {
      if (with_code || !is_code(table)) sinks.push_back(std::make_unique<Sink>(*database, table));
    }
    for (const OldTable& old : old_tables())
      sinks.push_back(std::make_unique<Sink>(*database, old));
    int found = 0;
    std::string page;
    for (std::uint32_t number = 1; number <= pages.count(); ++number) {
      if (!pages.read(number, &page)) continue;
      for (std::size_t at = 0; at + 1 < page.size(); ++at) {
        const std::uint8_t first = byte_at(page, at + 1);
        if (first != kHashType && first != kUuidType) continue;
        const auto row = record_at(pages, page, at);
        if (!row) continue;
        found += std::ranges::any_of(sinks, [&](const auto& sink) { return sink->take(*row); });
      }
    }
    sinks.clear();
    transaction.commit();
    return found;
  } catch (const SQLite::Exception& exception) {
    return to_error(exception, into);
  }
}

Result<SetAside> carry_over(const std::string& path, const StoreOptions& options) {
  SetAside done;
  ATT_TRY(done.names, finish_set_aside(
                          path, options.busy_timeout_ms, [&](const std::string& damaged) -> Status {
                            ATT_TRY(const int rows, salvage(damaged, path, options, true));
                            done.rows += rows;
                            return ok_status();
                          }));
  return done;
}

}  // namespace attune::cache
