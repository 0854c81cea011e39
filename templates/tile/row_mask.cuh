// A mask as one row of a partial tile sees it: two column numbers when the row's live keys are one
// range, the mask itself when they are not.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

// Columns count from the tile's key k0 of this thread: with a constant column and an unrolled loop
// an element costs one comparison an end, and no key is ever computed.
struct RowMask {
  int begin, end;  // live columns are [begin, end); set with kRowIsRange
  int q, k0;       // set without
};

// Of a row whose live keys are one range.
ATT_FN RowMask range_of_row(const Context& c, int q, int k0) {
  const KvBounds keys = row_bounds(c, q);
  return {keys.begin - k0, keys.end - k0, 0, 0};
}
ATT_FN bool is_in_range(const RowMask& row, int column) {
  if constexpr (!kRowHasBegin) return column < row.end;
  return (column >= row.begin) & (column < row.end);
}

ATT_FN RowMask row_mask(const Context& c, int q, int k0) {
  if constexpr (spec::kHasMask && kRowIsRange) return range_of_row(c, q, k0);
  return {0, c.kv_len - k0, q, k0};
}

// Whether the element is live: within the keys and the mask.
ATT_FN bool is_live(const Context& c, const RowMask& row, int column) {
  if constexpr (!spec::kHasMask) return column < row.end;
  if constexpr (kRowIsRange) return is_in_range(row, column);
  return (column < row.end) & mask(c, row.q, row.k0 + column);
}

}  // namespace att
