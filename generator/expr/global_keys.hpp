// Keys that a mask shows to queries wherever these stand, and queries that see all keys.
#pragma once

#include <span>

#include "generator/expr/ast.hpp"

namespace attune::expr {

// Whether the mask has some beside others that only near queries see: an `or` with a side that asks
// for the key alone, as `kv_idx < 4`, and one that hides the first keys of a long sequence from its
// last queries, as a window does. `scalars`: their values, by slot. Null is no mask.
bool has_global_keys(const Expr& mask, std::span<const double> scalars);

// Whether the first query of a long sequence sees all keys, as with `q_idx < 64`, whatever tensors
// hold, and others do not.
bool has_global_queries(const Expr& mask, std::span<const double> scalars);

}  // namespace attune::expr
