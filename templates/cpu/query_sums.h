// dQ where an item has all keys of a head, or a part of them: sums in the workspace, dQ += dS K a
// tile at a time. Lanes are elements of a row.
#pragma once

#include "templates/cpu/backward_scores.h"
#include "templates/cpu/product.h"
#include "templates/work_items.h"

namespace att {

// Of a row of the sums, whole vectors.
constexpr int kSumColumns = tile_count(spec::kHeadDimQk, kLanes) * kLanes;
// Items that a head's keys are divided among, whose sums of a row lie side by side.
ATT_INLINE int parts_of_head(const BackwardParams& p) {
  return plan::kInParts ? head_parts(p.batch * p.kv_heads) : 1;
}
ATT_INLINE long sum_stride(const BackwardParams& p) { return long{kSumColumns} * parts_of_head(p); }
using KeyRows = float[plan::kWholeHeads ? kBlockLanes : 1][kSumColumns];

// The register block: as many vectors as divide a row, and rows for the registers that are there.
constexpr bool kIsWide = kLanes == 16;
constexpr int kSumVectors = kSumColumns / kLanes;
constexpr int kVectorsOfSums = kIsWide && kSumVectors % 4 == 0   ? 4
                               : kIsWide && kSumVectors % 3 == 0 ? 3
                               : kSumVectors % 2 == 0            ? 2
                                                                 : 1;
constexpr int kRowsOfSums = (kIsWide ? 24 : 12) / kVectorsOfSums;

// Rows from `row` on in blocks of kRows, what is left in smaller ones.
template <int kRows>
ATT_INLINE void add_query_rows(const float* d, const float* keys, int row, int rows, int lanes,
                               long stride, float* sums) {
  for (; row + kRows <= rows; row += kRows) {
    Vec c[kRows][kVectorsOfSums];
    float* const to = sums + row * stride;
    load_block(to, stride, c);
    multiply_add(d + row * kBlockLanes, kBlockLanes, 1, keys, kSumColumns, lanes, c);
    store_block(c, to, stride);
  }
  if constexpr (kRows > 1) add_query_rows<kRows / 2>(d, keys, row, rows, lanes, stride, sums);
}

// `sums`: of the tile's first row; `stride`: to the next one's.
ATT_INLINE void add_query_sums(const ScoreTile& d, const KeyRows& keys, const Box& box, long stride,
                               float* sums) {
  for (int column = 0; column < kSumColumns; column += kVectorsOfSums * kLanes) {
    add_query_rows<kRowsOfSums>(&d[0][0], &keys[0][column], 0, box.rows, box.lanes, stride,
                                sums + column);
  }
}

}  // namespace att
