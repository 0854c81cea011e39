// The tables as sets of facts: what a row's checksum covers and how two rows of one key join.
// Recording, merging and salvaging all insert through the one statement made here, so they obey one
// rule.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace attune::cache {

struct Table {
  std::string_view name;
  std::string_view key;                        // its primary key's columns
  std::span<const std::string_view> summed;    // columns under the checksum, in the table's order
  std::span<const std::string_view> unsummed;  // columns behind `sum`
  // SQL: true when the row `excluded` replaces the row of the table. Of facts a strict order on
  // contents, or merging would depend on the order of files; code stays as it is.
  std::string_view replaces;
};
// All tables of facts: env, spec, problem, mask_data, length_data, candidate, cubin, build,
// measurement, quarantine.
std::span<const Table> tables();
const Table& table(std::string_view name);
// cubin and build: what a process would run.
bool is_code(const Table& table);

// "att_sum('env', digest, ...)" with each column after `prefix`: what `sum` must be.
std::string sum_of(const Table& table, std::string_view prefix = "");
// "sum = att_sum('env', digest, ...)" with columns qualified by `alias`; for cubin the image's hash
// as well.
std::string sound(const Table& table, std::string_view alias);

// "measurement WHERE ...": the rows of each table that refer to one that is not there, so that
// nothing can be read from them.
std::span<const std::string_view> orphans();

// INSERT of one row from parameters in the order of summed, unsummed columns; the sum is computed.
std::string insert_row(const Table& table);
// INSERT of all sound rows of `rows`, a table or a subquery with the table's columns.
std::string insert_from(const Table& table, std::string_view rows);

}  // namespace attune::cache
