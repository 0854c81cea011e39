// Pieces of an item that are a cluster: each CTA merges a share of the output, which the others
// send to its shared memory. Nothing goes through global memory, there is no counter to be zeroed,
// and no CTA waits for another but for what it merges.
#pragma once

#include "templates/ptx/cluster.cuh"
#include "templates/ptx/math.cuh"
#include "templates/ptx/mbarrier.cuh"
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

// What a CTA is sent, at a shared-memory address of 16 bytes that is the same in all CTAs of the
// cluster: of each piece the fours of columns that are the CTA's, and all rows' references and
// sums. The CTAs take the output's fours in turn, some each time.
template <int kPieces, int kRows, int kHeadDim>
struct ClusterResults {
  static constexpr int kFours = kHeadDim / 4;  // of a row
  static constexpr int kInTurn = 4;            // 16 columns of 16 bits: a sector
  static constexpr int kRound = kInTurn * kPieces;
  // One more, and lanes of different pieces read different banks.
  static constexpr int kStride = (kRows * kFours + kRound - 1) / kRound * kInTurn + 1;
  static constexpr int kStatisticsOffset = kPieces * kStride * 16;
  static constexpr int kBarrierOffset = kStatisticsOffset + kPieces * kRows * 8;
  static constexpr int kBytes = (kBarrierOffset + 8 + 127) / 128 * 128;  // what follows is swizzled

  unsigned address;

  ATT_MEMBER unsigned four(int piece, int at) const {
    return address + (piece * kStride + at) * 16;
  }
  ATT_MEMBER unsigned statistic(int piece, int row) const {
    return address + kStatisticsOffset + (piece * kRows + row) * 8;
  }
  ATT_MEMBER unsigned barrier() const { return address + kBarrierOffset; }

  // Of `all` fours those of a CTA.
  static ATT_MEMBER int share(int all, int rank) {
    const int rest = all % kRound - rank * kInTurn;
    return all / kRound * kInTurn + (rest < 0 ? 0 : rest < kInTurn ? rest : kInTurn);
  }

  // All threads of the cluster call it, where what lay at the address is not used any more.
  ATT_MEMBER void begin(int rows) const {
    if (thread_index() == 0) {
      const int fours = share(rows * kFours, static_cast<int>(cluster_cta_rank()));
      mbarrier_init(barrier(), 1);
      mbarrier_arrive_expect(barrier(), kPieces * (fours * 16 + rows * 8));
      mbarrier_init_fence();
    }
    cluster_arrive();
  }

  // Before anything is sent.
  ATT_MEMBER void wait_for_all() const { cluster_wait(); }

  ATT_MEMBER void send_four(int row, int column, const FourFloats& o) const {
    const int i = row * kFours + column / 4;
    cluster_send(four(static_cast<int>(cluster_cta_rank()), i / kRound * kInTurn + i % kInTurn),
                 barrier(), static_cast<unsigned>(i / kInTurn % kPieces), o.x);
  }
  ATT_MEMBER void send_statistic(int row, int to, float reference, float sum) const {
    cluster_send(statistic(static_cast<int>(cluster_cta_rank()), row), barrier(),
                 static_cast<unsigned>(to), {reference, sum});
  }

  // Calls write(row, column, O, reference, sum) of the CTA's fours, each from one thread. A lane
  // reads of one piece; the sums are those of a fixed tree. The whole CTA calls it.
  template <int kThreads, typename Write>
  ATT_MEMBER void merge(int rows, const Write& write) const {
    static_assert(kPieces >= 2 && kPieces <= 16 && (kPieces & (kPieces - 1)) == 0);
    const auto maximum = [](float a, float b) { return math_max(a, b); };
    const auto plus = [](float a, float b) { return a + b; };
    const int rank = static_cast<int>(cluster_cta_rank());
    const int count = share(rows * kFours, rank);
    const int from = thread_index() % kPieces;
    mbarrier_wait<true>(barrier(), 0);
#pragma unroll 1
    for (int first = 0; first < count; first += kThreads / kPieces) {
      const int at = first + thread_index() / kPieces;
      const int known = at < count ? at : count - 1;
      const int i = known / kInTurn * kRound + rank * kInTurn + known % kInTurn;
      const int row = i / kFours;
      float o[4], reference, sum;
      load_shared_floats(four(from, known), o);
      load_shared_8(statistic(from, row), reference, sum);
      const float highest = join_lanes<kPieces>(reference, maximum);
      const float weight = math_exp2(as_log2(reference - finite(highest)));
      const float whole = join_lanes<kPieces>(weight * sum, plus);
      FourFloats merged;
#pragma unroll
      for (int e = 0; e < 4; ++e) merged.x[e] = join_lanes<kPieces>(weight * o[e], plus);
      if (from == 0 && at < count) write(row, i % kFours * 4, merged, highest, whole);
    }
  }
};

}  // namespace att
