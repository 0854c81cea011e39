// The SQLite file that remembers code and measurements. cache/FORMAT.md describes it,
// cache/schema.sql defines it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/plan/mask_data.hpp"
#include "generator/plan/plan.hpp"
#include "generator/support/result.hpp"

namespace attune {

// Which compiler, whatever its version: "clang" of "clang 19.1.7, driver 13.0".
std::string compiler_family(std::string_view identity);

// Names machine code: equal keys, equal code.
struct BuildKey {
  std::string spec_hash;
  std::string plan;       // to_string(KernelPlan), its pass included
  std::string body_hash;  // of the generated source
  std::string compiler;   // Compiler::identity()
  std::string target;     // "sm_90a"; for the CPU, "cpu" and the vector extension
  // canonical_text() behind spec_hash, so that no other spec of that hash gets the code; empty: the
  // hash alone has to do.
  std::string spec_text;
  std::string digest() const;  // XXH3-128 of all of them but the text, hex
};

// Names what a time was measured on and for.
struct MeasurementKey {
  std::string spec_hash;
  std::string device;  // Device::identity(), driver included
  ProblemShape shape;
  std::string protocol;  // version of the measuring method: "events-cold-l2-2"
  Pass pass = Pass::kForward;
  std::string spec_text;  // as BuildKey::spec_text
  MaskData data;          // its label is of the name
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
  std::string compiler;  // of the build; empty: not known
  double median_us = 0;
  double spread_us = 0;  // interquartile range
  int samples = 0;
  // What the kernel takes: within noise the one that takes less wins. Registers are a thread's.
  int threads = 0, registers = 0, shared_bytes = 0;
  std::string measured_at;  // ISO 8601, UTC; empty: now
  std::string conditions;   // JSON: clocks, temperature, power, throttle reasons
};

// A candidate that must not be tried again, and why. "compile" holds for every shape and device,
// "miscompute" and "fault" for every shape on the same hardware, "hang", "launch" and "doubtful" (a
// wrong result that other numbers did not confirm) for the key alone.
struct Rejection {
  std::string plan;
  std::string build_digest;
  std::string reason;  // "compile", "miscompute", "doubtful", "hang", "fault", "launch"
  std::string detail;
};

// A plan as one compiler built it.
struct MeasuredPlan {
  std::string plan;
  std::string compiler;  // that built what was measured; empty: not known
  double median_us = 0;
};
// What won on one kind of data, fastest first; where variations of it were measured too
// (generator/plan/mask_data.hpp), first those that lose least on average; never empty.
struct DataPlans {
  MaskData data;
  std::vector<MeasuredPlan> plans;
};
// Where a problem was measured on several kinds of data: the plan that loses least on the worst of
// them.
struct Winner {
  std::string plan;
  std::string compiler;  // that built what was measured; empty: not known
  double median_us = 0;
  ProblemShape measured_shape;  // differs from the asked one when a bucket answered
  bool same_driver = true;      // false: measured on this hardware under another driver
  // The next best, fastest first: for where the winner cannot be had, because another driver or
  // compiler refuses it, and for other shapes, where one of them may be better. At most kRunnersUp.
  std::vector<MeasuredPlan> runners_up;
  std::vector<DataPlans> by_data;  // every kind that was measured
};
// Enough to hold plans of more than one schedule: near the best many differ in one small part.
inline constexpr std::size_t kRunnersUp = 7;

// `winner` as it is on the kind of data that is labelled so, else on those whose shares of tiles
// and lengths are the nearest; `winner` itself where neither is known.
Winner on_data(Winner winner, const MaskData& data);

// The winner of one problem; a row of the snapshot.
struct ProblemWinner {
  std::string spec_hash;
  Winner winner;
  Pass pass = Pass::kForward;
};

// What went wrong with a file since it was opened; none of it stops anything.
struct StoreHealth {
  int damaged_rows = 0;  // failed their checksum and were passed over
  int set_aside = 0;     // times the file was found damaged, renamed and begun anew
  int failed_reads = 0;
  int failed_writes = 0;     // full disk, lock not granted, read-only
  bool network = false;      // the file lies on a network filesystem
  std::string code_refused;  // why none of its code is run or stored; empty: it is
  std::string not_written;   // why nothing can be stored, at this moment; empty: it can
  std::string last_warning;
};

// One file. Every member is thread-safe and safe beside other processes. A Store never throws.
// A file found damaged is renamed *.corrupt-<time>, what is readable is carried into a new one, and
// the call goes on with that.
// What is stored under one spec's hash is not answered for another spec of the same hash, and that
// one's is not stored: "cache-hash-collision".
class Store {
 public:
  virtual ~Store() = default;
  virtual const std::string& path() const = 0;
  virtual StoreHealth health() const = 0;

  // nullopt: not there, damaged, or in a file that others may write (docs/trust.md). The image's
  // length and hash were checked.
  virtual Result<std::optional<CodeRecord>> find_code(const BuildKey& key) const = 0;
  // The keys of all code of a spec, the most recently used first. What find_code() cannot name
  // because the key's compiler is not there.
  virtual Result<std::vector<BuildKey>> stored_builds(const std::string& spec_hash) const = 0;
  // What is there already stays, unless it is damaged. "cache-untrusted": others may write the
  // file.
  virtual Status put_code(const BuildKey& key, const CodeRecord& code) = 0;
  // Pinned code is never evicted. False: no such code.
  virtual Result<bool> pin_code(const BuildKey& key, bool pinned) = 0;

  // Times must be finite and positive (kBadInput).
  virtual Status record(const MeasurementKey& key, const Measurement& measurement) = 0;
  virtual Status reject(const MeasurementKey& key, const Rejection& rejection) = 0;
  virtual Result<std::vector<Measurement>> measurements(const MeasurementKey& key) const = 0;
  // Those that hold for `key`: see Rejection.
  virtual Result<std::vector<Rejection>> rejections(const MeasurementKey& key) const = 0;
  // The best plan of the exact shape, else of the nearest shape of the same spec, pass and hardware
  // (docs/cache.md).
  virtual Result<std::optional<Winner>> winner(const MeasurementKey& key) const = 0;
  // Every problem's winner on the hardware of `device`, by spec, pass and shape; what a snapshot is
  // made of.
  virtual Result<std::vector<ProblemWinner>> winners(const std::string& device) const = 0;

  // Single flight: true when the caller now holds `name` for `seconds`, false when another living
  // process does. A lease whose holder died, or whose clock lies in the future, is free. A file
  // whose code is not run leases nothing, so that nobody waits for a stranger.
  virtual Result<bool> take_lease(const std::string& name, double seconds) = 0;
  virtual Status give_lease(const std::string& name) = 0;
};

struct StoreOptions {
  bool read_only = false;
  int busy_timeout_ms = 5000;
  // Least recently used code is evicted above it; the rest of the file is never evicted. 0: no
  // limit.
  std::int64_t size_limit_bytes = std::int64_t{4} << 30;
  std::string vfs;  // SQLite VFS; empty: the system's
  // Called for everything that is worked around; null: one line on stderr.
  std::function<void(const Error&)> warn;
};
// Opens or creates. The caller goes on without it when it cannot be used: "cache-absent" (read-only
// and not there), "cache-from-the-future", "cache-foreign-file", "cache-locked", "cache-io".
Result<std::unique_ptr<Store>> open_store(const std::string& path,
                                          const StoreOptions& options = {});
// The same for who is about to measure for long: "cache-read-only" where nothing could be stored.
Result<std::unique_ptr<Store>> open_writable_store(const std::string& path);
// $ATTUNE_CACHE, else $XDG_CACHE_HOME/attune/attune.db, else ~/.cache/attune/attune.db; empty, for
// no cache, where the first is `none` or the latter two are not set to absolute paths.
std::string default_store_path();

}  // namespace attune
