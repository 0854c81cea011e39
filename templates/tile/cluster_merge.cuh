// Pieces of an item that are a cluster: each CTA reads its share of the output out of the shared
// memory of all of them. Nothing goes through global memory, and there is no counter to be zeroed.
#pragma once

#include "templates/ptx/cluster.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/pieces.cuh"

namespace att {

// Sum, or maximum, over kLanes neighbouring lanes, the same for all of them.
template <int kLanes, typename Join>
ATT_FN float join_lanes(float value, const Join& join) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = join(value, shuffle_xor(value, distance));
  }
  return value;
}

// `own` has this CTA's part of the item, `weights` its reference and sum, at the same addresses in
// every CTA of the cluster of kPieces. Calls write(row, column, O, reference, sum) of every fourth
// column of the rows, each from one thread of the cluster. A lane reads of one piece; the sums are
// those of a fixed tree. All threads of the cluster call it, at its end no CTA is read any more.
template <int kPieces, int kThreads, int kHeadDim, int kRows, int kStride, int kMostParts,
          typename Write>
ATT_FN void merge_in_cluster(int rows, const Parts<kRows, kStride>& own,
                             const Weights<kMostParts, kRows>& weights, const Write& write) {
  static_assert(kPieces >= 2 && kPieces <= 16 && (kPieces & (kPieces - 1)) == 0);
  constexpr int kFours = kHeadDim / 4;
  const auto maximum = [](float a, float b) { return math_max(a, b); };
  const auto plus = [](float a, float b) { return a + b; };
  cluster_sync();
  const int rank = static_cast<int>(cluster_cta_rank());
  const int all = rows * kFours;
  const int end = all * (rank + 1) / kPieces;
  const unsigned from = static_cast<unsigned>(thread_index() % kPieces);
#pragma unroll 1
  for (int first = all * rank / kPieces; first < end; first += kThreads / kPieces) {
    const int i = first + thread_index() / kPieces;
    const int row = (i < end ? i : end - 1) / kFours;
    const int column = (i < end ? i : end - 1) % kFours * 4;
    float o[4], reference[1], sum[1];
    cluster_load(o, shared_address(own.output(0, row) + column), from);
    cluster_load(reference, shared_address(&weights.reference[row]), from);
    cluster_load(sum, shared_address(&weights.sum[row]), from);
    const float highest = join_lanes<kPieces>(reference[0], maximum);
    const float weight = math_exp2(reference[0] - finite(highest));
    const float whole = join_lanes<kPieces>(weight * sum[0], plus);
    FourFloats merged;
#pragma unroll
    for (int e = 0; e < 4; ++e) merged.x[e] = join_lanes<kPieces>(weight * o[e], plus);
    if (from == 0 && i < end) write(row, column, merged, highest, whole);
  }
  cluster_sync();
}

}  // namespace att
