#include "cache/rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace attune::cache {
namespace {

using Columns = std::span<const std::string_view>;
constexpr std::array<std::string_view, 4> kEnv{"digest", "device", "hardware", "protocol"};
constexpr std::array<std::string_view, 2> kSpec{"hash", "text"};
constexpr std::array<std::string_view, 8> kProblem{"digest", "spec_hash", "pass",  "batch",
                                                   "heads",  "kv_heads",  "q_len", "kv_len"};
constexpr std::array<std::string_view, 4> kMaskData{"problem", "label", "live", "full"};
constexpr std::array<std::string_view, 4> kLengthData{"problem", "longest", "filled", "page_size"};
constexpr std::array<std::string_view, 6> kCandidate{"digest",    "spec_hash", "plan",
                                                     "body_hash", "compiler",  "target"};
constexpr std::array<std::string_view, 7> kCubin{"hash",
                                                 "length",
                                                 "registers",
                                                 "spill_store_bytes",
                                                 "spill_load_bytes",
                                                 "stack_bytes",
                                                 "static_shared_bytes"};
constexpr std::array<std::string_view, 3> kCubinUse{"last_used", "pinned", "image"};
constexpr std::array<std::string_view, 3> kBuild{"candidate", "cubin", "compile_seconds"};
constexpr std::array<std::string_view, 12> kMeasurement{
    "uuid",    "env",     "problem",   "candidate",    "median_us",   "spread_us",
    "samples", "threads", "registers", "shared_bytes", "measured_at", "conditions"};
constexpr std::array<std::string_view, 6> kQuarantine{"env",    "problem", "candidate",
                                                      "reason", "detail",  "noted_at"};
constexpr std::array<Table, 10> kTables{{
    {"env", "digest", kEnv, {}, "excluded.sum < env.sum"},
    {"spec", "hash", kSpec, {}, "false"},
    {"problem", "digest", kProblem, {}, "excluded.sum < problem.sum"},
    {"mask_data", "problem", kMaskData, {}, "excluded.sum < mask_data.sum"},
    {"length_data", "problem", kLengthData, {}, "excluded.sum < length_data.sum"},
    // A candidate first known by its measurements learns how it was built.
    {"candidate",
     "digest",
     kCandidate,
     {},
     "(excluded.body_hash, excluded.compiler, excluded.target, excluded.plan, excluded.spec_hash) "
     "> "
     "(candidate.body_hash, candidate.compiler, candidate.target, candidate.plan, "
     "candidate.spec_hash)"},
    // Code that is there stays: another file may hold anything by its name.
    {"cubin", "hash", kCubin, kCubinUse, "false"},
    {"build",
     "candidate",
     kBuild,
     {},
     "NOT EXISTS (SELECT 1 FROM main.cubin AS kept WHERE kept.hash = build.cubin AND "
     "att_hash(kept.image) = kept.hash)"},
    {"measurement", "uuid", kMeasurement, {}, "excluded.sum < measurement.sum"},
    {"quarantine",
     "env, problem, candidate",
     kQuarantine,
     {},
     "(excluded.noted_at, excluded.reason, excluded.detail) < "
     "(quarantine.noted_at, quarantine.reason, quarantine.detail)"},
}};

std::vector<std::string_view> all_columns(const Table& table) {
  std::vector<std::string_view> columns(table.summed.begin(), table.summed.end());
  columns.push_back("sum");
  columns.insert(columns.end(), table.unsummed.begin(), table.unsummed.end());
  return columns;
}

std::string column_list(const Table& table) {
  return fmt::format("{}", fmt::join(all_columns(table), ", "));
}

std::string on_conflict(const Table& table) {
  std::string text = fmt::format(" ON CONFLICT ({}) DO UPDATE SET ", table.key);
  const std::string replaced =
      fmt::format("(NOT ({}) OR ({}))", sound(table, table.name), table.replaces);
  const bool cubin = table.name == "cubin";
  std::string separator;
  for (std::string_view column : all_columns(table)) {
    if (cubin && (column == "last_used" || column == "pinned")) {
      text += fmt::format("{0}{1} = max(cubin.{1}, excluded.{1})", separator, column);
    } else if (cubin) {
      text +=
          fmt::format("{0}{1} = iif({2}, excluded.{1}, cubin.{1})", separator, column, replaced);
    } else {
      text += fmt::format("{0}{1} = excluded.{1}", separator, column);
    }
    separator = ", ";
  }
  if (cubin) {
    return text + fmt::format(
                      " WHERE excluded.last_used > cubin.last_used OR excluded.pinned > "
                      "cubin.pinned OR {}",
                      replaced);
  }
  return text + " WHERE " + replaced;
}

}  // namespace

std::span<const Table> tables() { return kTables; }

const Table& table(std::string_view name) {
  return *std::ranges::find(kTables, name, &Table::name);
}

bool is_code(const Table& table) { return table.name == "cubin" || table.name == "build"; }

std::span<const std::string_view> orphans() {
  static constexpr std::array<std::string_view, 5> kOrphans{
      "measurement WHERE env NOT IN (SELECT digest FROM env) OR problem NOT IN (SELECT digest FROM "
      "problem) OR candidate NOT IN (SELECT digest FROM candidate)",
      "quarantine WHERE env NOT IN (SELECT digest FROM env) OR problem NOT IN (SELECT digest FROM "
      "problem) OR candidate NOT IN (SELECT digest FROM candidate)",
      "mask_data WHERE problem NOT IN (SELECT digest FROM problem)",
      "length_data WHERE problem NOT IN (SELECT digest FROM problem)",
      "build WHERE cubin NOT IN (SELECT hash FROM cubin) OR candidate NOT IN (SELECT digest FROM "
      "candidate)"};
  return kOrphans;
}

std::string sum_of(const Table& table, std::string_view prefix) {
  std::string text = fmt::format("att_sum('{}'", table.name);
  for (std::string_view column : table.summed) text += fmt::format(", {}{}", prefix, column);
  return text + ")";
}

std::string sound(const Table& table, std::string_view alias) {
  const std::string prefix = alias.empty() ? "" : fmt::format("{}.", alias);
  std::string text = fmt::format("{}sum = {}", prefix, sum_of(table, prefix));
  if (table.name == "cubin") {
    text +=
        fmt::format(" AND length({0}image) = {0}length AND att_hash({0}image) = {0}hash", prefix);
  }
  return text;
}

std::string insert_row(const Table& table) {
  std::string values, sum = fmt::format("att_sum('{}'", table.name);
  int parameter = 0;
  for (std::size_t i = 0; i < table.summed.size(); ++i) {
    ++parameter;
    values += fmt::format("?{}, ", parameter);
    sum += fmt::format(", ?{}", parameter);
  }
  values += sum + ")";
  for (std::size_t i = 0; i < table.unsummed.size(); ++i)
    values += fmt::format(", ?{}", ++parameter);
  return fmt::format("INSERT INTO {} ({}) VALUES ({})", table.name, column_list(table), values) +
         on_conflict(table);
}

std::string insert_from(const Table& table, std::string_view rows) {
  return fmt::format("INSERT INTO main.{0} ({1}) SELECT {1} FROM {2} AS source WHERE {3}",
                     table.name, column_list(table), rows, sound(table, "source")) +
         on_conflict(table);
}

}  // namespace attune::cache
