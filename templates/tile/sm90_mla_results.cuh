// From the halves of O in two warpgroups' registers to the item's O and LSE, without shared memory:
// the next piece's keys come into it meanwhile.
//
// Where an item has a few pieces, the last one to arrive adds the others' results to its own, which
// it has not written then. The order of the sum is that of the pieces, whoever is last.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/arrive.cuh"
#include "templates/ptx/convert.cuh"
#include "templates/ptx/dependent_launch.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/tile/item_rows.cuh"
#include "templates/tile/pieces.cuh"
#include "templates/tile/sm90_mla.cuh"
#include "templates/tile/sm90_mla_rows.cuh"
#include "templates/tile/softmax.cuh"

namespace att {

constexpr int kFewPieces = 3;
using Results = Parts<kRows, kDimV>;

// A row's columns of the warpgroup in which a lane has its own ones of eight.
ATT_FN int lane_column(int group) { return group * kGroupColumns + lane_index() % 4 * 2; }

ATT_FN void leave_result(const Results& found, const PieceOfItem& own, const HalfOfO& half,
                         const RowTotals& totals, int group) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int row = lane_row() + 8 * side;
    if (row >= own.item.rows()) continue;
    float* const to = found.output(own.piece, row) + lane_column(group);
#pragma unroll
    for (int n = 0; n < kGroupColumns / 8; ++n) {
      store_global_8(to + 8 * n, __builtin_bit_cast(unsigned, half.o[4 * n + 2 * side]),
                     __builtin_bit_cast(unsigned, half.o[4 * n + 2 * side + 1]));
    }
    if (group == 0 && lane_index() % 4 == 0) {
      found.statistic(own.piece, row)[0] = totals.reference[side];
      found.statistic(own.piece, row)[1] = totals.sum[side];
    }
  }
}

// The same in shared memory, of the only part there.
ATT_FN void store_totals(const Parts<kRows, kPartStride>& part, const RowTotals& totals,
                         int group) {
  if (group != 0 || lane_index() % 4 != 0) return;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    part.statistic(0, lane_row() + 8 * side)[0] = totals.reference[side];
    part.statistic(0, lane_row() + 8 * side)[1] = totals.sum[side];
  }
}

// All pieces but the own one have left their results.
ATT_FN void add_results(const Results& found, const PieceOfItem& own, HalfOfO& half,
                        RowTotals& totals, int group) {
  constexpr int kAtOnce = 8;  // loads on their way
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int row = lane_row() + 8 * side;
    float references[kFewPieces], weights[kFewPieces];
    float highest = -infinity(), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) {
      Statistic of = {-infinity(), 0.0f};
      if (i == own.piece) {
        of = {totals.reference[side], totals.sum[side]};
      } else if (i < own.pieces && row < own.item.rows()) {
        of = *reinterpret_cast<const Statistic*>(found.statistic(i, row));
      }
      references[i] = of.reference;
      weights[i] = of.sum;
      highest = math_max(highest, of.reference);
    }
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) {
      const float weight = math_exp2(as_log2(references[i] - finite(highest)));
      sum += weight * weights[i];
      weights[i] = weight;
    }
    totals.reference[side] = highest;
    totals.sum[side] = sum;
#pragma unroll
    for (int first = 0; first < kGroupColumns / 8; first += kAtOnce) {
      float all[kAtOnce][2] = {};
#pragma unroll
      for (int i = 0; i < kFewPieces; ++i) {
        float of[kAtOnce][2];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          of[j][0] = half.o[4 * (first + j) + 2 * side];
          of[j][1] = half.o[4 * (first + j) + 2 * side + 1];
        }
        if (i >= own.pieces) continue;
        if (i != own.piece && row < own.item.rows()) {
          const float* const from = found.output(i, row) + lane_column(group) + 8 * first;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const auto two = *reinterpret_cast<const Statistic*>(from + 8 * j);
            of[j][0] = two.reference;
            of[j][1] = two.sum;
          }
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          all[j][0] += weights[i] * of[j][0];
          all[j][1] += weights[i] * of[j][1];
        }
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        half.o[4 * (first + j) + 2 * side] = all[j][0];
        half.o[4 * (first + j) + 2 * side + 1] = all[j][1];
      }
    }
  }
}

// O and LSE. Lanes beside one another exchange columns, so that a quad writes 32 bytes at once.
ATT_FN void write_rows(const ForwardParams& p, const Item& item, const HalfOfO& half,
                       const RowTotals& totals, int group) {
  const int odd = lane_index() & 1;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const bool valid = lane_row() + 8 * side < item.rows();
    const int row = valid ? lane_row() + 8 * side : 0;
    const int h = item.h0 + row / item.queries();
    const int q = item.q0 + row % item.queries();
    float reference = totals.reference[side], sum = totals.sum[side];
    const float factor = finish_row(context_of(p, item, h), reference, sum);
    char* const to = static_cast<char*>(p.o) + 2 * (query_offset(item.sequence, p.o_stride, h, q) +
                                                    lane_column(group) + 6 * odd);
#pragma unroll
    for (int n = 0; n < kGroupColumns / 8; n += 2) {
      const int at = 4 * n + 2 * side;
      const unsigned first = pack_2<spec::kDType>(half.o[at] * factor, half.o[at + 1] * factor);
      const unsigned second =
          pack_2<spec::kDType>(half.o[at + 4] * factor, half.o[at + 5] * factor);
      const unsigned other = shuffle_xor(odd != 0 ? first : second, 1);
      if (!valid) continue;
      store_global_8(to + 16 * n, odd != 0 ? other : first, odd != 0 ? second : other);
    }
    if (p.lse != nullptr && valid && group == 0 && lane_index() % 4 == 0) {
      p.lse[lse_offset(p, item.sequence, h, q)] = log_sum_exp(reference, sum);
    }
  }
}

// Where results of the item's pieces wait to be merged.
ATT_FN Results results_of(const ListKernelParams& params, const PieceOfItem& own) {
  float* const results = params.pieces.rows;
  const long long first_row = static_cast<long long>(own.result - own.piece) * kRows;
  const long long all_rows = static_cast<long long>(own.all_results) * kRows;
  return {results + first_row * kDimV, results + all_rows * kDimV + 2 * first_row, own.pieces};
}

// The whole CTA calls it with kFewPieces at most; `seen` is in shared memory.
ATT_FN void deliver_rows(const ListKernelParams& params, const PieceOfItem& own, HalfOfO& half,
                         RowTotals& totals, int group, int& seen) {
  if (own.pieces > 1) {
    const Results found = results_of(params, own);
    int* const counter = params.pieces.arrivals + own.arrivals;
    wait_for_launches_before();  // arrivals are counted from zero
    if (thread_index() == 0) seen = load_acquire(counter);
    sync_threads();
    if (seen != own.pieces - 1) {
      leave_result(found, own, half, totals, group);
      sync_threads();
      if (thread_index() == 0) seen = arrive(counter);
      sync_threads();
      if (seen != own.pieces - 1) return;
    }
    add_results(found, own, half, totals, group);
  }
  write_rows(params, own.item, half, totals, group);
}

}  // namespace att
