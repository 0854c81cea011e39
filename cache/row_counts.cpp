#include "cache/row_counts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cache/database.hpp"
#include "cache/rows.hpp"

namespace attune::cache {
namespace {

// What follows FROM to read every row of `table` through one tree after the other.
std::vector<std::string> ways_to_read(SQLite::Database& database, std::string_view table) {
  std::vector<std::string> ways = {fmt::format("{} NOT INDEXED", table)};
  SQLite::Statement indexes(
      database, fmt::format("SELECT list.name, info.name FROM pragma_index_list('{}') list, "
                            "pragma_index_info(list.name) info WHERE info.seqno = 0",
                            table));
  // A text is not less than an empty one; without a condition SQLite takes any index it likes.
  while (indexes.executeStep())
    ways.push_back(fmt::format("{} INDEXED BY {} WHERE {} >= ''", table,
                               indexes.getColumn(0).getString(), indexes.getColumn(1).getString()));
  return ways;
}

}  // namespace

std::map<std::string, int> row_counts(const std::string& path) {
  std::map<std::string, int> counts;
  const auto tolerantly = [](const auto& count) {
    try {
      count();
    } catch (const SQLite::Exception&) {
      // Damaged here; others may tell.
    }
  };
  tolerantly([&] {
    const auto database = open_database(path, {.read_only = true}, false);
    for (const Table& table : tables()) {
      tolerantly([&] {
        for (const std::string& way : ways_to_read(*database, table.name)) {
          tolerantly([&] {
            const int rows = database->execAndGet("SELECT count(*) FROM " + way).getInt();
            int& most = counts[std::string(table.name)];
            most = std::max(most, rows);
          });
        }
      });
    }
  });
  return counts;
}

}  // namespace attune::cache
