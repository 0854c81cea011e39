// From a spec and a shape to a kernel that can be launched: cache first, then compile.
#pragma once

#include <memory>
#include <string>

#include "cache/store.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune {

struct BuiltKernel {
  KernelPlan plan;
  CompiledKernel code;
  bool from_cache = false;
  double emit_seconds = 0;
  std::string symbol;
  BuildKey key;
};

// Emits, then takes the code from `store` (may be null) or compiles it and stores it. A store that fails is a
// warning and a counter, never an error. Thread-safe.
Result<BuiltKernel> build(const AttentionSpec& spec, const KernelPlan& plan, Compiler& compiler, Store* store);

// The plan to use: the tuned winner for the shape, its nearest measured bucket, or the cost model's.
enum class PlanSource { kMeasured, kNearestBucket, kCostModel };
struct PlanChoice {
  KernelPlan plan;
  PlanSource source = PlanSource::kCostModel;
  std::string file;  // the cache file that answered
};
Result<PlanChoice> choose_plan(const AttentionSpec& spec, const ProblemShape& shape, const Device& device, const Store* store);

}  // namespace attune
