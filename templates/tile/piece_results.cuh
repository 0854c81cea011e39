// From what a CTA found to the item's O and LSE: pieces of an item's keys leave their results in
// the workspace, and the one that arrives last merges them, or several share that
// (templates/tile/piece_merge.cuh); the result is the same to the bit whoever does.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/tile/cluster_merge.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/piece_merge.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// Fours of columns that a thread takes at once: rows of 512 columns are many of them.
constexpr int kFoursAtOnce = kFoursOfRow >= 128 ? 4 : 1;

// The item's O and LSE from its parts.
template <int kStride, int kMostParts>
ATT_FN void write_output(const ForwardParams& p, const Item& item,
                         const Parts<kRows, kStride>& parts,
                         const Weights<kMostParts, kRows>& weights) {
  for_each_four_columns<kFoursAtOnce>(item, [&](int row, int column) {
    const FourFloats o = merge(parts, weights, row, column);
    write_columns(p, item, row, column, o, weights.reference[row], weights.sum[row]);
  });
}

// Behind the parts of a CTA's warps.
template <int kStride>
ATT_FN auto cluster_results(const Parts<kRows, kStride>& parts) {
  return ClusterResults<plan::kPieces, kRows, spec::kHeadDimV>{
      shared_address(parts.statistics + 2 * plan::kWarps * kRows)};
}

// The whole CTA calls it before deliver(), where nothing is left behind the parts.
template <int kStride>
ATT_FN void begin_delivery(const PieceOfItem& own, const Parts<kRows, kStride>& parts) {
  if constexpr (plan::kInCluster) cluster_results(parts).begin(own.item.rows());
}

// The whole CTA calls it. `parts`: what it found of its piece, in shared memory, as are `weights`
// and `share`. Merges them, and all pieces, or shares of them, when the others are done.
template <int kStride, int kMostParts>
ATT_FN void deliver(const ListKernelParams& params, const PieceOfItem& own,
                    const Parts<kRows, kStride>& parts, Weights<kMostParts, kRows>& weights,
                    int& share) {
  weigh<plan::kWarps>(parts, 0, own.item.rows(), weights);
  if (own.pieces == 1) {
    write_output(params, own.item, parts, weights);
    return;
  }

  if constexpr (plan::kInCluster) {
    const auto cluster = cluster_results(parts);
    const int rows = own.item.rows();
    cluster.wait_for_all();
    for_each_four_columns(own.item, [&](int row, int column) {
      cluster.send_four(row, column, merge(parts, weights, row, column));
    });
    for (int i = thread_index(); i < rows * plan::kPieces; i += kThreads) {
      const int row = i / plan::kPieces;
      cluster.send_statistic(row, i % plan::kPieces, weights.reference[row], weights.sum[row]);
    }
    cluster.template merge<kThreads>(
        rows, [&](int row, int column, const FourFloats& o, float reference, float sum) {
          write_columns(params, own.item, row, column, o, reference, sum);
        });
    return;
  }

  float* const results = params.pieces.rows;
  constexpr int kColumns = spec::kHeadDimV;
  const long long first_row = static_cast<long long>(own.result - own.piece) * kRows;
  const long long all_rows = static_cast<long long>(own.all_results) * kRows;
  const Parts<kRows, kColumns> found = {results + first_row * kColumns,
                                        results + all_rows * kColumns + 2 * first_row, own.pieces};
  const int shares = merge_shares(params, own);
  for_each_four_columns<kFoursAtOnce>(own.item, [&](int row, int column) {
    store_result(found.output(own.piece, row) + column, merge(parts, weights, row, column));
    if (column == 0) {
      found.statistic(own.piece, row)[0] = weights.reference[row];
      found.statistic(own.piece, row)[1] = weights.sum[row];
    }
  });
  sync_threads();
  int* const counter = counter_of(params, own);
  // Where the parts were.
  FourFloats* const sums = reinterpret_cast<FourFloats*>(parts.outputs);
  if (thread_index() == 0) share = first_share(counter, own, shares);
#pragma unroll 1
  for (;;) {
    sync_threads();
    if (share == kNoShare) return;
    write_share(params, own.item, found, weights, sums, share, shares);
    if (shares == 1) return;
    sync_threads();  // all have read the number
    if (thread_index() == 0) share = next_share(counter, shares);
  }
}

}  // namespace att
