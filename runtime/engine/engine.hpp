// From a spec and a shape to a kernel that can be launched: cache first, then compile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {

// How the tuner measures; times taken in different ways are never compared. CUDA events, L2 flushed
// or rotated out, interleaved rounds, median.
inline constexpr std::string_view kMeasurementProtocol = "events-cold-l2-2";

struct BuiltKernel {
  KernelPlan plan;
  CompiledKernel code;
  bool from_cache = false;
  double emit_seconds = 0;
  std::string symbol;
  BuildKey key;
};

// A compile takes a second at most; ten times that is a process that does not get on.
inline constexpr double kBuildWaitSeconds = 10;

// Emits, then takes the code from `store` (may be null) or compiles it and stores it. Of several
// processes that need the same code one compiles and the others wait for it, at most
// `wait_seconds`. A store that fails costs time, never the result. Thread-safe.
Result<BuiltKernel> build(const AttentionSpec& spec, const KernelPlan& plan, Compiler& compiler,
                          Store* store, double wait_seconds = kBuildWaitSeconds);

// The code of a plan that `store` has, nullopt when it has none: `compiler`'s, or without one
// (null) whatever compiler, of `family` unless that is empty, made of the same source. Compiles
// nothing. Thread-safe.
Result<std::optional<BuiltKernel>> find_built(const AttentionSpec& spec, const KernelPlan& plan,
                                              const Compiler* compiler, const Store& store,
                                              const std::string& family = "");

// The key of the code that build() would make. Emits, compiles nothing.
Result<BuildKey> build_key(const AttentionSpec& spec, const KernelPlan& plan,
                           const Compiler& compiler);

// The plan to use: the tuned winner for the shape, its nearest measured bucket, the cost model's,
// or one whose code is there while the better one's is not.
enum class PlanSource { kMeasured, kNearestBucket, kCostModel, kStandIn };
struct PlanChoice {
  KernelPlan plan;
  PlanSource source = PlanSource::kCostModel;
  std::string compiler;         // identity of the one whose code was measured; empty: any will do
  std::string file;             // the cache file that answered; empty: none did
  ProblemShape measured_shape;  // that the file answered for
  bool operator==(const PlanChoice&) const = default;
};
// The plan of a cached text, when it is one of the pass that this version of Attune still knows and
// the device can run.
Result<KernelPlan> usable_plan(const AttentionSpec& spec, Pass pass, const std::string& text,
                               const DeviceFacts& facts);

// A plan that would be better and cannot be had, and why.
struct FailedPlan {
  std::string plan;
  std::string reason;
};
FailedPlan failed_plan(std::string plan, const Error& error);

// What was measured for a shape: the winner, then its runners-up. For a shape whose nearest bucket
// answers: the same plans in the order of their measured times, each scaled by what the cost model
// says of it at both shapes. Plans that this version of Attune no longer knows or the device cannot
// run are named beside.
struct MeasuredChoices {
  std::vector<PlanChoice> usable;
  std::vector<FailedPlan> unusable;
};
MeasuredChoices measured_choices(const AttentionSpec& spec, Pass pass, const ProblemShape& shape,
                                 const DeviceFacts& facts, const Winner& winner,
                                 const std::string& file);

// `store` may be null. Thread-safe.
Result<PlanChoice> choose_plan(const AttentionSpec& spec, const ProblemShape& shape,
                               const Device& device, const Store* store,
                               Pass pass = Pass::kForward);

}  // namespace attune
