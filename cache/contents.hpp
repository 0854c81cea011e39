// All that one cache file holds, for lists and reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store.hpp"

namespace attune {

struct StoredMeasurement {
  MeasurementKey key;
  Measurement measurement;
};

struct StoredRejection {
  std::string spec_hash;
  std::string device;
  ProblemShape shape;
  Rejection rejection;
  Pass pass = Pass::kForward;
};

struct StoredCode {
  BuildKey key;
  std::string content_hash;
  std::int64_t image_bytes = 0;
  int registers = 0;
  int spill_bytes = 0;
  double compile_seconds = 0;
  std::int64_t last_used = 0;  // Unix seconds
  bool pinned = false;
};

struct CacheContents {
  std::vector<StoredMeasurement> measurements;  // in the order of measurement
  std::vector<StoredRejection> rejections;
  std::vector<StoredCode> code;  // by spec and plan
  std::int64_t file_bytes = 0;
  int damaged_rows = 0;  // failed their checksum and were passed over
};

// Changes nothing. Errors are open_store()'s.
Result<CacheContents> read_contents(const std::string& path);

}  // namespace attune
