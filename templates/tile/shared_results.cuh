// What pieces found of rows that may be of several sequences: where it waits in the workspace, and
// how a row's results, those of a shared prefix first, become its O and LSE.
#pragma once

#include "templates/tile/pieces.cuh"
#include "templates/tile/shared_rows.cuh"

namespace att {

// Those of a K/V head, row by row.
struct SharedResults {
  float* outputs;
  float* statistics;

  ATT_MEMBER SharedResults(const PackedParams& p, int h_kv) {
    const int room = shared_result_room(p.batch, p.kv_heads);
    const long long first = static_cast<long long>(h_kv) * room * kRows;
    const long long all = static_cast<long long>(p.kv_heads) * room * kRows;
    outputs = p.pieces.rows + first * spec::kHeadDimV;
    statistics = p.pieces.rows + all * spec::kHeadDimV + 2 * first;
  }
  ATT_MEMBER float* output(int result, int row) const {
    return outputs + (static_cast<long long>(result) * kRows + row) * spec::kHeadDimV;
  }
  ATT_MEMBER float* statistic(int result, int row) const {
    return statistics + 2 * (static_cast<long long>(result) * kRows + row);
  }
};

ATT_FN int* shared_arrivals(const PackedParams& p, const SharedMember& member, int h_kv) {
  return p.pieces.arrivals + h_kv * shared_result_room(p.batch, p.kv_heads) + member.own_result;
}

ATT_FN void write_shared_output(const ForwardParams& p, const SharedRow& of, int h_kv, int column,
                                const FourFloats& o, float reference, float sum) {
  const Sequence sequence = {of.q_len, of.kv_len, 0, of.q_first, 0};
  const float factor = finish_row(of.context(p, h_kv), reference, sum);
  store_global_8(
      static_cast<char*>(p.o) + 2 * (query_offset(sequence, p.o_stride, of.h, of.q) + column),
      pack_2<spec::kDType>(o.x[0] * factor, o.x[1] * factor),
      pack_2<spec::kDType>(o.x[2] * factor, o.x[3] * factor));
  if (p.lse != nullptr && column == 0) {
    p.lse[lse_offset(p, sequence, of.h, of.q)] = log_sum_exp(reference, sum);
  }
}

// Calls f(row, column) of every fourth column of rows [first, first + count), each from one thread.
template <typename F>
ATT_FN void for_each_four_of_rows(int first, int count, const F& f) {
  constexpr int kFours = spec::kHeadDimV / 4;
#pragma unroll 1
  for (int i = thread_index(); i < count * kFours; i += kThreads) {
    f(first + i / kFours, i % kFours * 4);
  }
}

constexpr int kMostResults = 2 * plan::kPieces;  // of a row: of a prefix, and of own keys
using ResultWeights = Weights<kMostResults, kRows>;

// O and LSE of the rows whose members are marked, from all results of them, those of the prefix
// first: the order depends on nothing but how many there are. The whole CTA calls it.
ATT_FN void merge_results(const PackedParams& p, const SharedTable& table, const SharedWork& work,
                          ResultWeights& weights) {
  const SharedResults results(p, work.h_kv);
  const auto result_of = [&](const SharedMember& member, int i) {
    return i < member.prefix_pieces ? member.prefix_result + i
                                    : member.own_result + i - member.prefix_pieces;
  };
  const auto row_of = [&](const SharedMember& member, int row, int i) {
    return row - member.first_row + (i < member.prefix_pieces ? member.prefix_row : 0);
  };
  const int lane = lane_index();
#pragma unroll 1
  for (int row = warp_index(); row < work.rows; row += plan::kWarps) {
    const int at = table.rows[row].member;
    if (!table.is_last[at]) continue;
    const SharedMember& member = table.members[at];
    const int count = member.results();
    const auto statistic = [&](int i) {
      return results.statistic(result_of(member, i), row_of(member, row, i));
    };
    float reference = -infinity();
#pragma unroll 1
    for (int i = lane; i < count; i += 32) reference = math_max(reference, statistic(i)[0]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      reference = math_max(reference, shuffle_xor(reference, distance));
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const float weight = math_exp2(as_log2(statistic(i)[0] - finite(reference)));
      weights.of[row][i] = weight;
      sum += weight * statistic(i)[1];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    if (lane == 0) {
      weights.reference[row] = reference;
      weights.sum[row] = sum;
    }
  }
  sync_threads();
  for_each_four_of_rows(0, work.rows, [&](int row, int column) {
    const int at = table.rows[row].member;
    if (!table.is_last[at]) return;
    const SharedMember& member = table.members[at];
    const int count = member.results();
    FourFloats merged = {};
    // A batch is on its way at once, the last one too, where results behind the last count nothing.
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      FourFloats o[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int result = min_i32(first + i, count - 1);
        o[i] = *reinterpret_cast<const FourFloats*>(
            results.output(result_of(member, result), row_of(member, row, result)) + column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= count) continue;
        const float weight = weights.of[row][first + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) merged.x[j] += weight * o[i].x[j];
      }
    }
    write_shared_output(p, table.rows[row], work.h_kv, column, merged, weights.reference[row],
                        weights.sum[row]);
  });
}

}  // namespace att
