// The SQLite file that remembers code and measurements. cache/FORMAT.md describes it, cache/schema.sql defines it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generator/plan/plan.hpp"
#include "generator/support/result.hpp"

namespace attune {

// Names machine code: equal keys, equal code.
struct BuildKey {
  std::string spec_hash;
  std::string plan;       // to_string(KernelPlan)
  std::string body_hash;  // of the generated source
  std::string compiler;   // Compiler::identity()
  std::string target;     // "sm_90a"; for the CPU, "cpu" and the vector extension
  std::string digest() const;  // XXH3-128 of all of them, hex
};

// Names what a time was measured on and for.
struct MeasurementKey {
  std::string spec_hash;
  std::string device;    // Device::identity(), driver included
  ProblemShape shape;
  std::string protocol;  // version of the measuring method: "events-cold-l2-1"
};

struct CodeRecord {
  std::vector<std::uint8_t> image;
  int registers = 0;
  int spill_store_bytes = 0, spill_load_bytes = 0, stack_bytes = 0, static_shared_bytes = 0;
  double compile_seconds = 0;
};

struct Measurement {
  std::string plan;
  std::string build_digest;
  double median_us = 0;
  double spread_us = 0;  // interquartile range
  int samples = 0;
  std::string measured_at;  // ISO 8601, UTC
  std::string conditions;   // JSON: clocks, temperature, power, throttle reasons
};

// A candidate that must not be tried again on this key, and why.
struct Rejection {
  std::string plan;
  std::string build_digest;
  std::string reason;  // "compile", "miscompute", "hang", "fault", "launch"
  std::string detail;
};

struct Winner {
  std::string plan;
  double median_us = 0;
  ProblemShape measured_shape;  // differs from the asked one when a bucket answered
};

// One file. Every member is thread-safe and safe beside other processes. A Store never throws.
class Store {
 public:
  virtual ~Store() = default;
  virtual const std::string& path() const = 0;

  // nullopt: not there, or damaged (set aside with a warning). The image's length and hash were checked.
  virtual Result<std::optional<CodeRecord>> find_code(const BuildKey& key) const = 0;
  virtual Status put_code(const BuildKey& key, const CodeRecord& code) = 0;

  virtual Status record(const MeasurementKey& key, const Measurement& measurement) = 0;
  virtual Status reject(const MeasurementKey& key, const Rejection& rejection) = 0;
  virtual Result<std::vector<Measurement>> measurements(const MeasurementKey& key) const = 0;
  virtual Result<std::vector<Rejection>> rejections(const MeasurementKey& key) const = 0;
  // The plan with the lowest median for the exact shape, else for the nearest shape of the same spec and device.
  virtual Result<std::optional<Winner>> winner(const MeasurementKey& key) const = 0;
};

struct StoreOptions {
  bool read_only = false;
  int busy_timeout_ms = 5000;
};
// Opens or creates. kFailed when it cannot be used; the caller goes on without.
Result<std::unique_ptr<Store>> open_store(const std::string& path, const StoreOptions& options = {});
// $ATTUNE_CACHE, else $XDG_CACHE_HOME/attune/attune.db, else ~/.cache/attune/attune.db.
std::string default_store_path();

}  // namespace attune
