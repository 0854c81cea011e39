// Rows of a paged K or V as fp32, brought together page by page.
#pragma once

#include "templates/cpu/rows.h"
#include "templates/sequence.h"

namespace att {

// Of one sequence and head, which `base` and `stride` say where to find.
struct PagedRows {
  const PageTable& table;
  const void* base;
  const Strides& stride;
  int b, head;
};

// The keys from `first` on, as fp32_rows() has rows that follow one another. What lies in no page
// of the cache is zero.
template <int kDim, int kRows>
ATT_INLINE Rows paged_rows(const PagedRows& from, int first, int count, int padded,
                           float (&copy)[kRows][kDim]) {
  for (int row = 0; row < count;) {
    const PagedKey key = paged_key(from.table, from.b, first + row);
    const int left = from.table.page_size - key.row;
    const int end = left < count - row ? row + left : count;
    const Storage* at = static_cast<const Storage*>(from.base);
    if (key.page >= 0) at += key_offset(key, from.stride, from.head);
    if (key.page >= 0 && end - row == count) {
      return fp32_rows(at, from.stride.seq, count, padded, copy);
    }
    for (; row < end; ++row) {
      for (int i = 0; i < kDim; ++i) copy[row][i] = key.page < 0 ? 0.0f : to_float(at[i]);
      if (row + 1 < end && key.page >= 0) at += from.stride.seq;
    }
  }
  for (int row = count; row < padded; ++row) {
    for (int i = 0; i < kDim; ++i) copy[row][i] = 0.0f;
  }
  return {&copy[0][0], kDim};
}

}  // namespace att
