#include "cache/query.hpp"

#include <fmt/format.h>

#include "cache/keys.hpp"
#include "cache/rows.hpp"

namespace attune::cache {
namespace {

constexpr std::string_view kProblemColumns =
    "p.spec_hash, e.device, p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len, c.plan, c.digest, "
    "e.protocol, c.compiler, p.pass, d.label, d.live, d.full, l.longest, l.filled, "
    "l.page_size";

ProblemShape shape_at(SQLite::Statement& row, int first) {
  return {row.getColumn(first).getInt64(), row.getColumn(first + 1).getInt64(),
          row.getColumn(first + 2).getInt64(), row.getColumn(first + 3).getInt64(),
          row.getColumn(first + 4).getInt64()};
}

// All of a fact's rows must be sound: a time with another shape's name would be a lie.
std::string facts(std::string_view fact, std::string_view columns, bool of_one_spec) {
  return fmt::format(
      "SELECT {0}, f.*, ({1}) AND ({2}) AND ({3}) AND ({4}) AND (d.problem IS NULL OR ({5})) "
      "AND (l.problem IS NULL OR ({6})) AS is_sound FROM {7} f JOIN env e ON e.digest = f.env "
      "JOIN problem p ON p.digest = f.problem LEFT JOIN mask_data d ON d.problem = f.problem "
      "LEFT JOIN length_data l ON l.problem = f.problem "
      "JOIN candidate c ON c.digest = f.candidate{8}",
      columns, sound(table(fact), "f"), sound(table("env"), "e"), sound(table("problem"), "p"),
      sound(table("candidate"), "c"), sound(table("mask_data"), "d"),
      sound(table("length_data"), "l"), fact, of_one_spec ? " WHERE p.spec_hash = ?1" : "");
}

// The sound rows of a fact as `read` makes them of the statement, the others counted.
template <typename Row, typename Read>
std::vector<Row> read_facts(SQLite::Database& database, std::string_view fact,
                            std::string_view order, const std::string& spec_hash, int* damaged_rows,
                            const Read& read) {
  SQLite::Statement row(database, facts(fact, kProblemColumns, !spec_hash.empty()) + " ORDER BY " +
                                      std::string(order));
  if (!spec_hash.empty()) row.bind(1, spec_hash);
  std::vector<Row> rows;
  while (row.executeStep()) {
    if (row.getColumn("is_sound").getInt() == 0) {
      ++*damaged_rows;
      continue;
    }
    Row made = read(row);
    made.spec_hash = row.getColumn(0).getString();
    made.device = row.getColumn(1).getString();
    made.shape = shape_at(row, 2);
    const auto pass = pass_of(row.getColumn("pass").getString());
    if (!pass) continue;  // of a file that knows more passes
    made.pass = *pass;
    rows.push_back(std::move(made));
  }
  return rows;
}

}  // namespace

std::vector<MeasuredRow> read_measurements(SQLite::Database& database, const std::string& spec_hash,
                                           int* damaged_rows) {
  const auto data_of = [](SQLite::Statement& row) {
    MaskData data;
    if (const auto label = row.getColumn("label"); !label.isNull()) {
      data.label = label.getString();
      data.live = row.getColumn("live").getDouble();
      data.full = row.getColumn("full").getDouble();
    }
    if (const auto longest = row.getColumn("longest"); !longest.isNull()) {
      data.lengths = {.longest = longest.getDouble(),
                      .filled = row.getColumn("filled").getDouble(),
                      .page_size = row.getColumn("page_size").getInt()};
    }
    return data;
  };
  const auto read = [&](SQLite::Statement& row) {
    return MeasuredRow{.protocol = row.getColumn("protocol").getString(),
                       .measurement = {.plan = row.getColumn(7).getString(),
                                       .build_digest = row.getColumn(8).getString(),
                                       .compiler = row.getColumn("compiler").getString(),
                                       .median_us = row.getColumn("median_us").getDouble(),
                                       .spread_us = row.getColumn("spread_us").getDouble(),
                                       .samples = row.getColumn("samples").getInt(),
                                       .threads = row.getColumn("threads").getInt(),
                                       .registers = row.getColumn("registers").getInt(),
                                       .shared_bytes = row.getColumn("shared_bytes").getInt(),
                                       .measured_at = row.getColumn("measured_at").getString(),
                                       .conditions = row.getColumn("conditions").getString()},
                       .data = data_of(row)};
  };
  return read_facts<MeasuredRow>(database, "measurement", "f.measured_at, f.uuid", spec_hash,
                                 damaged_rows, read);
}

std::vector<RejectedRow> read_rejections(SQLite::Database& database, const std::string& spec_hash,
                                         int* damaged_rows) {
  const auto read = [](SQLite::Statement& row) {
    return RejectedRow{.rejection = {.plan = row.getColumn(7).getString(),
                                     .build_digest = row.getColumn(8).getString(),
                                     .reason = row.getColumn("reason").getString(),
                                     .detail = row.getColumn("detail").getString()}};
  };
  return read_facts<RejectedRow>(database, "quarantine", "c.plan, c.digest", spec_hash,
                                 damaged_rows, read);
}

std::vector<BuildKey> read_builds(SQLite::Database& database, const std::string& spec_hash,
                                  int* damaged_rows) {
  // A compiler's name may be empty as long as only a candidate's measurements are known.
  SQLite::Statement row(
      database,
      fmt::format("SELECT c.spec_hash, c.plan, c.body_hash, c.compiler, c.target, {} AND {} "
                  "FROM candidate c JOIN build b ON b.candidate = c.digest "
                  "JOIN cubin k ON k.hash = b.cubin WHERE c.spec_hash = ?1 AND c.compiler <> '' "
                  "ORDER BY k.last_used DESC, c.digest",
                  sound(table("candidate"), "c"), sound(table("build"), "b")));
  row.bind(1, spec_hash);
  std::vector<BuildKey> keys;
  while (row.executeStep()) {
    if (row.getColumn(5).getInt() == 0) {
      ++*damaged_rows;
      continue;
    }
    keys.push_back({.spec_hash = row.getColumn(0).getString(),
                    .plan = row.getColumn(1).getString(),
                    .body_hash = row.getColumn(2).getString(),
                    .compiler = row.getColumn(3).getString(),
                    .target = row.getColumn(4).getString()});
  }
  return keys;
}

}  // namespace attune::cache
