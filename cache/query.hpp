// Reading facts back: rows that fail their checksum are passed over and counted.
#pragma once

#include <string>
#include <vector>

#include "cache/database.hpp"
#include "cache/winner.hpp"

namespace attune::cache {

// Of one spec, or of all when `spec_hash` is empty; in the order of measurement.
std::vector<MeasuredRow> read_measurements(SQLite::Database& database, const std::string& spec_hash,
                                           int* damaged_rows);
std::vector<RejectedRow> read_rejections(SQLite::Database& database, const std::string& spec_hash,
                                         int* damaged_rows);
// The keys of a spec's code, the most recently used first.
std::vector<BuildKey> read_builds(SQLite::Database& database, const std::string& spec_hash,
                                  int* damaged_rows);

}  // namespace attune::cache
