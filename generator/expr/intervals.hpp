// Sound interval analysis of a mask over a tile box; the mask compiler's core
// (docs/mask_compiler.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

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
  // Range of tensor `slot` over a box of indices, which may lie outside the dims and is to be
  // clamped as a look-up is; {NaN, NaN} when it holds a NaN. Null: everything of the tensor's type.
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

// The same two for many boxes of one mask: the analysis is made once. Thread-safe.
struct MaskProgram;
class TileClassifier {
 public:
  explicit TileClassifier(const Expr& mask);
  TileClass operator()(const TileBox& box) const;

 private:
  std::shared_ptr<const MaskProgram> program_;
};
class KvBoundsSolver {
 public:
  explicit KvBoundsSolver(const Expr& mask);
  KvBounds operator()(const TileBox& queries) const;

 private:
  std::shared_ptr<const MaskProgram> program_;
};

// Tensors whose per-block (min, max) pairs the mask's interval code reads: what the pre-pass of
// templates/kernels/block_ranges.cuh must make before a launch. Ascending.
std::vector<int> range_slots(const Expr& mask);  // null mask: none
// Those whose values tell the interval code which tiles live: range_slots(), and tensors that are
// looked up in few places a tile. Ascending.
std::vector<int> telling_slots(const Expr& mask);

}  // namespace attune::expr
