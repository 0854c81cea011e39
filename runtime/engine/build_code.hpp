// Source that was emitted -> code: from the cache, else compiled. What the source came from is the
// caller's.
#pragma once

#include <optional>

#include "generator/emit/emit.hpp"
#include "runtime/engine/engine.hpp"

namespace attune {

struct SourceToBuild {
  const GeneratedKernel& generated;
  Target target;
  BuildKey key;  // `compiler` need not be set
};
struct BuiltCode {
  CompiledKernel code;
  bool from_cache = false;
  BuildKey key;
};

// As build() of a spec and plan.
Result<BuiltCode> build_code(SourceToBuild source, Compiler& compiler, Store* store,
                             double wait_seconds = kBuildWaitSeconds);
// As find_built() of a spec and plan.
Result<std::optional<BuiltCode>> find_code(SourceToBuild source, const Compiler* compiler,
                                           const Store& store, const std::string& family = "");

}  // namespace attune
