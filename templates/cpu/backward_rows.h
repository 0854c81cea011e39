// What the backward kernels know of each row of queries: made once a launch from O, dO and the LSE.
#pragma once

#include "templates/cpu/vector.h"
#include "templates/sequence.h"

namespace att {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_inff();

// Sums of every eighth product, so that they become a vector.
ATT_INLINE float row_product(const Storage* a, const Storage* b) {
  float sums[8] = {};
  for (int i = 0; i < spec::kHeadDimV; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += to_float(a[i + j]) * to_float(b[i + j]);
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Of row number `row` of [batch, heads, q_len], of packed sequences [heads, q_len]: the reference
// of its exponentials, the LSE, and D = rowsum(dO O) - dLSE. A row without live keys,
// whose O, dO and dLSE may be anything, has an infinite reference, which makes its probabilities 0,
// and D = 0. What is made of packed rows that are no sequence's nobody reads.
ATT_INLINE void make_row_statistics(const BackwardParams& p, long long row) {
  const int head = static_cast<int>(row / p.q_len);
  const int q = static_cast<int>(row - static_cast<long long>(head) * p.q_len);
  const long long lse_row = lse_offset(p, head, q);
  const float lse = p.lse[lse_row];
  if (lse == -kInfinity) {
    p.row_references[row] = kInfinity;
    p.row_deltas[row] = 0.0f;
    return;
  }
  const Sequence sequence =
      spec::kIsPacked ? Sequence{p.q_len, p.kv_len, 0, 0, 0} : sequence_of(p, head / p.heads);
  const int h = head % p.heads;
  const float product =
      row_product(static_cast<const Storage*>(p.o) + query_offset(sequence, p.o_stride, h, q),
                  static_cast<const Storage*>(p.d_o) + query_offset(sequence, p.d_o_stride, h, q));
  p.row_references[row] = lse;
  p.row_deltas[row] = p.d_lse == nullptr ? product : product - p.d_lse[lse_row];
}

}  // namespace att
