// A tensor's dims as a spec writes them.
#pragma once

#include "generator/expr/ast.hpp"
#include "generator/spec/spec_reader.hpp"
#include "generator/support/result.hpp"

namespace attune {

// "kv_len", "16", or what is computed from one size: "(q_len + 127) // 128". Whatever comes down to
// (size * factor + offset) // divisor is taken, within the bounds of limits.hpp. Errors point at
// the part that is wrong. Thread-safe.
Result<expr::DimSize> read_dim(const SpecReader& reader, const YamlNode& node);

}  // namespace attune
