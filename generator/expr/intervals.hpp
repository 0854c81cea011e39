// Sound interval analysis of a mask over a tile box; the mask compiler's core
// (docs/mask_compiler.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "generator/expr/ast.hpp"

namespace attune::expr {

enum class TileClass : std::uint8_t { kSkip, kPartial, kFull };

struct IntInterval {
  std::int64_t lo = 0, hi = 0;  // inclusive
};
struct RealInterval {
  double lo = 0, hi = 0;  // inclusive, may be infinite
};

// A box of queries [q0, q1) and keys [k0, k1) of one (batch, head).
struct TileBox {
  std::int32_t q0 = 0, q1 = 1, k0 = 0, k1 = 1;
  std::int32_t b = 0, h = 0, h_kv = 0, q_len = 1, kv_len = 1;
  std::span<const double> scalars;  // by slot
  // Range of tensor `slot` over a box of indices. Null: everything of the tensor's type.
  std::function<RealInterval(int slot, std::span<const IntInterval> indices)> tensor_range;
};

// kSkip: no point of the box is live; kFull: every point is. Sound always; exact for comparisons
// that are affine in q_idx and kv_idx and for their and/or with disjoint dependence. Thread-safe.
TileClass classify(const Expr& mask, const TileBox& box);

// A range of keys outside which no query of [q0, q1) has a live one; within [0, kv_len].
struct KvBounds {
  std::int32_t begin = 0, end = 0;
};
KvBounds kv_bounds(const Expr& mask, const TileBox& queries);  // k0, k1 are ignored

}  // namespace attune::expr
