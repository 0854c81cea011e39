// From what a CTA found to the item's O and LSE: pieces of an item's keys leave their results in
// the workspace, and the one that arrives last merges them, in the order of the pieces.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/tile/cluster_merge.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// The item's O and LSE from its parts.
template <int kStride, int kMostParts>
ATT_FN void write_output(const ForwardParams& p, const Item& item,
                         const Parts<kRows, kStride>& parts,
                         const Weights<kMostParts, kRows>& weights) {
  for_each_four_columns(item, [&](int row, int column) {
    const FourFloats o = merge(parts, weights, row, column);
    write_columns(p, item, row, column, o, weights.reference[row], weights.sum[row]);
  });
}

// The whole CTA calls it. `parts`: what it found of its piece, in shared memory, as are `weights`
// and `is_last`. Merges them, and all pieces if the others are done.
template <int kStride, int kMostParts>
ATT_FN void deliver(const ListKernelParams& params, const PieceOfItem& own,
                    const Parts<kRows, kStride>& parts, Weights<kMostParts, kRows>& weights,
                    bool& is_last) {
  weigh<plan::kWarps>(parts, own.item.rows(), weights);
  if (own.pieces == 1) {
    write_output(params, own.item, parts, weights);
    return;
  }

  if constexpr (plan::kInCluster) {
    for_each_four_columns(own.item, [&](int row, int column) {
      *reinterpret_cast<FourFloats*>(parts.output(0, row) + column) =
          merge(parts, weights, row, column);
    });
    const auto write = [&](int row, int column, const FourFloats& o, float reference, float sum) {
      write_columns(params, own.item, row, column, o, reference, sum);
    };
    merge_in_cluster<plan::kPieces, kThreads, spec::kHeadDimV>(own.item.rows(), parts, weights,
                                                               write);
    return;
  }

  float* const results = params.pieces.rows;
  constexpr int kColumns = spec::kHeadDimV;
  const long long first_row = static_cast<long long>(own.result - own.piece) * kRows;
  const long long all_rows = static_cast<long long>(own.all_results) * kRows;
  const Parts<kRows, kColumns> found = {results + first_row * kColumns,
                                        results + all_rows * kColumns + 2 * first_row, own.pieces};
  for_each_four_columns(own.item, [&](int row, int column) {
    *reinterpret_cast<FourFloats*>(found.output(own.piece, row) + column) =
        merge(parts, weights, row, column);
    if (column == 0) {
      found.statistic(own.piece, row)[0] = weights.reference[row];
      found.statistic(own.piece, row)[1] = weights.sum[row];
    }
  });
  sync_threads();
  if (thread_index() == 0) {
    is_last = arrive(params.pieces.arrivals + own.arrivals) == own.pieces - 1;
  }
  sync_threads();
  if (!is_last) return;
  weigh<plan::kWarps>(found, own.item.rows(), weights);
  write_output(params, own.item, found, weights);
}

}  // namespace att
