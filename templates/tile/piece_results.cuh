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

// The same of what pieces left in global memory, which takes long to answer: a thread has many of
// its words on their way at once. (One after the other took 50 us of 4 pieces of 64 rows of 512
// columns.) Sums are made in the order of the pieces.
template <int kMostParts>
ATT_FN void weigh_pieces(const Parts<kRows, spec::kHeadDimV>& pieces, int rows,
                         Weights<kMostParts, kRows>& weights) {
  constexpr int kAtOnce = 8;
#pragma unroll 1
  for (int row = thread_index(); row < rows; row += kThreads) {
    float reference = -infinity(), sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < pieces.count; first += kAtOnce) {
      float of[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        of[i] = first + i < pieces.count ? pieces.statistic(first + i, row)[0] : -infinity();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) reference = math_max(reference, of[i]);
    }
#pragma unroll 1
    for (int first = 0; first < pieces.count; first += kAtOnce) {
      float of[kAtOnce], sum_of[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool is_piece = first + i < pieces.count;
        of[i] = is_piece ? pieces.statistic(first + i, row)[0] : -infinity();
        sum_of[i] = is_piece ? pieces.statistic(first + i, row)[1] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = math_exp2(of[i] - finite(reference));
        if (first + i < pieces.count) weights.of[row][first + i] = weight;
        sum += weight * sum_of[i];
      }
    }
    weights.reference[row] = reference;
    weights.sum[row] = sum;
  }
  sync_threads();
}

template <int kMostParts>
ATT_FN void write_pieces(const ForwardParams& p, const Item& item,
                         const Parts<kRows, spec::kHeadDimV>& pieces,
                         const Weights<kMostParts, kRows>& weights) {
  constexpr int kFours = spec::kHeadDimV / 4;
  constexpr int kOfThread = (kRows * kFours + kThreads - 1) / kThreads;
  constexpr int kAtOnce = kOfThread < 8 ? kOfThread : 8;
  const int count = item.rows() * kFours;
#pragma unroll 1
  for (int first = thread_index(); first < count; first += kAtOnce * kThreads) {
    FourFloats merged[kAtOnce] = {};
#pragma unroll 2
    for (int piece = 0; piece < pieces.count; ++piece) {
      FourFloats of[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = min_i32(first + i * kThreads, count - 1);
        of[i] = *reinterpret_cast<const FourFloats*>(pieces.output(piece, at / kFours) +
                                                     at % kFours * 4);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = min_i32(first + i * kThreads, count - 1);
        const float weight = weights.of[at / kFours][piece];
#pragma unroll
        for (int j = 0; j < 4; ++j) merged[i].x[j] += weight * of[i].x[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      const int row = at / kFours;
      if (at < count) {
        write_columns(p, item, row, at % kFours * 4, merged[i], weights.reference[row],
                      weights.sum[row]);
      }
    }
  }
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
  weigh_pieces(found, own.item.rows(), weights);
  write_pieces(params, own.item, found, weights);
}

}  // namespace att
