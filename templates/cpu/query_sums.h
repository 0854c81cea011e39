// dQ where one item has all keys of a head: sums in the workspace, dQ += dS K a tile at a time.
// Lanes are elements of a row.
#pragma once

#include "templates/cpu/backward_scores.h"
#include "templates/cpu/product.h"
#include "templates/work_items.h"

namespace att {

// Of a row of the sums, whole vectors.
constexpr int kSumColumns = tile_count(spec::kHeadDimQk, kLanes) * kLanes;
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
                               float* sums) {
  for (; row + kRows <= rows; row += kRows) {
    Vec c[kRows][kVectorsOfSums];
    float* const to = sums + static_cast<long>(row) * kSumColumns;
    load_block(to, kSumColumns, c);
    multiply_add(d + row * kBlockLanes, kBlockLanes, 1, keys, kSumColumns, lanes, c);
    store_block(c, to, kSumColumns);
  }
  if constexpr (kRows > 1) add_query_rows<kRows / 2>(d, keys, row, rows, lanes, sums);
}

// `sums`: of the tile's first row.
ATT_INLINE void add_query_sums(const ScoreTile& d, const KeyRows& keys, const Box& box,
                               float* sums) {
  for (int column = 0; column < kSumColumns; column += kVectorsOfSums * kLanes) {
    add_query_rows<kRowsOfSums>(&d[0][0], &keys[0][column], 0, box.rows, box.lanes, sums + column);
  }
}

}  // namespace att
