// What is known of an int32 expression before any launch: its range over every legal input.
#pragma once

#include "generator/expr/ast.hpp"
#include "generator/expr/intervals.hpp"

namespace attune::expr {

// Sound for 0 <= b, h, h_kv and any q_idx, kv_idx a kernel may ask for (a tile beyond the lengths
// at most). An expression that may wrap has the full int32 range. Precondition: int32 type.
IntInterval static_range(const Expr& expression);

// Whether the operation at the root may leave int32 and wrap. Precondition: int32 type.
bool may_wrap(const Expr& expression);

enum class IndexProof { kInside, kUnknown, kOutside };

// Whether a look-up's index lies in [0, size of `dim`) for every legal input: b < batch, h < heads,
// h_kv < kv_heads, q_idx < q_len, kv_idx < kv_len.
IndexProof prove_index(const Expr& index, const DimSize& dim);

// Whether a dim is of the tokens of all sequences, and an index that of one in the own sequence.
// Sizes that are computed from a length are no tokens, and indices into them are what they are.
inline bool is_token_dim(const Environment& environment, const DimSize& dim) {
  if (!dim.is_plain()) return false;
  if (dim.dim == Dim::kKvLen) return environment.is_packed && !environment.is_paged;
  return environment.is_packed && dim.dim == Dim::kQLen;
}

}  // namespace attune::expr
