// The sequence that a work item belongs to: how long it is and where its rows lie in q, k, v, o and
// lse. Kernels know of the layout of sequences only what stands here.
#pragma once

#include "templates/kernels/head.cuh"

namespace att {

struct Sequence {
  int q_len, kv_len;  // its own
  int slice;          // along the batch stride, or TMA's last coordinate
  int q_first;        // rows of q and o that lie before its own in the slice
  int kv_first;       // the same of k and v
};

// Of batch index b: a slice of its own.
ATT_FN Sequence sequence_of(const ForwardParams& p, int b) { return {p.q_len, p.kv_len, b, 0, 0}; }

ATT_FN Context context_of(const ForwardParams& p, int b, int h, int h_kv) {
  const Sequence sequence = sequence_of(p, b);
  return {p, b, h, h_kv, sequence.q_len, sequence.kv_len};
}

// Elements before row `row` of a head: of q or o, and of k or v.
ATT_FN long long query_offset(const Sequence& s, const Strides& stride, int h, int row) {
  return s.slice * stride.batch + h * stride.head + (s.q_first + row) * stride.seq;
}
ATT_FN long long key_offset(const Sequence& s, const Strides& stride, int h_kv, int row) {
  return s.slice * stride.batch + h_kv * stride.head + (s.kv_first + row) * stride.seq;
}

// Elements before the LSE of a head's first row, and before whatever else a row has one of; those
// of the other rows follow.
ATT_FN long long statistic_offset(const ForwardParams& p, int b, int h) {
  return (static_cast<long long>(b) * p.heads + h) * p.q_len;
}

}  // namespace att
