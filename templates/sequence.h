// The sequence that a work item belongs to: how long it is and where its rows lie in q, k, v, o and
// lse. Kernels know of the layout of sequences only what stands here.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/page_table.h"

namespace att {

struct Sequence {
  int q_len, kv_len;  // its own
  int slice;          // along the batch stride, or TMA's last coordinate
  int q_first;        // rows of q and o that lie before its own in the slice
  int kv_first;       // the same of k and v
};

// What a forward kernel declares: lists of sequences, then pages, then scales lie behind what all
// others read.
template <bool kIsPacked, bool kIsPaged, bool kHasScales = false>
struct ParamsOf {
  using Type = LaunchParams;
};
template <>
struct ParamsOf<false, false, false> {
  using Type = ForwardParams;
};
template <>
struct ParamsOf<true, false, false> {
  using Type = PackedParams;
};
template <>
struct ParamsOf<true, true, false> {
  using Type = PagedParams;
};
using KernelParams = ParamsOf<spec::kIsPacked, spec::kIsPaged>::Type;
// Of one that makes or takes a list.
using ListKernelParams = ParamsOf<true, spec::kIsPaged, spec::kKvDType != spec::kDType>::Type;

// What a backward kernel declares.
template <bool kIsPacked>
struct BackwardParamsOf {
  using Type = BackwardParams;
};
template <>
struct BackwardParamsOf<true> {
  using Type = PagedParams;
};
using BackwardKernelParams = BackwardParamsOf<spec::kIsPacked>::Type;

// Rows of one sequence among those of all.
struct PackedSpan {
  int first, length;
};

// Of sequence b. Offsets and lengths are the caller's device memory, which nobody has checked:
// whatever they hold, the span lies within [0, total).
ATT_FN PackedSpan packed_span(const int* offsets, const int* used, int b, int total) {
  const int begin = offsets[b], end = offsets[b + 1];
  const int first = begin < 0 ? 0 : begin > total ? total : begin;
  const int last = end < first ? first : end > total ? total : end;
  int length = last - first;
  if (used != nullptr) {
    const int wanted = used[b];
    length = wanted < 0 ? 0 : wanted < length ? wanted : length;
  }
  return {first, length};
}

// Of batch index b: a slice of its own, or, packed, some rows of the only one. Where paged keys lie
// only the table says.
ATT_FN Sequence sequence_of(const ForwardParams& p, int b) {
  if constexpr (spec::kIsPacked) {
    const SequenceList& list = static_cast<const PackedParams&>(p).sequences;
    const PackedSpan q = packed_span(list.cu_q, list.used_q, b, p.q_len);
    if constexpr (spec::kIsPaged) {
      const int keys = list.used_kv[b];
      return {q.length, keys < 0 ? 0 : keys < p.kv_len ? keys : p.kv_len, 0, q.first, 0};
    }
    const PackedSpan kv = packed_span(list.cu_kv, list.used_kv, b, p.kv_len);
    return {q.length, kv.length, 0, q.first, kv.first};
  }
  return {p.q_len, p.kv_len, b, 0, 0};
}

ATT_FN Context context_of(const ForwardParams& p, const Sequence& sequence, int b, int h,
                          int h_kv) {
  return {p, b, h, h_kv, sequence.q_len, sequence.kv_len, sequence.q_first, sequence.kv_first};
}
ATT_FN Context context_of(const ForwardParams& p, int b, int h, int h_kv) {
  return context_of(p, sequence_of(p, b), b, h, h_kv);
}

// That of the context; lists are not read again.
ATT_FN Sequence sequence_of(const Context& c) {
  if constexpr (spec::kIsPacked) return {c.q_len, c.kv_len, 0, c.q_first, c.kv_first};
  return sequence_of(c.params, c.b);
}

// The same; `b` is c.b, where that is to be taken anew.
ATT_FN Sequence sequence_at(const Context& c, int b) {
  return spec::kIsPacked ? sequence_of(c) : sequence_of(c.params, b);
}

// Elements before a slice. With residues every kResidues-th row of a caller's sequence is a
// slice's: the host has made a batch of them, and steps over as many rows at a time.
ATT_FN long long slice_offset(const Strides& stride, int slice) {
  if constexpr (spec::kResidues == 1) return slice * stride.batch;
  return slice / spec::kResidues * stride.batch +
         slice % spec::kResidues * (stride.seq / spec::kResidues);
}

// Elements before row `row` of a head: of q or o, and of k or v that are not paged.
ATT_FN long long query_offset(const Sequence& s, const Strides& stride, int h, int row) {
  return slice_offset(stride, s.slice) + h * stride.head + (s.q_first + row) * stride.seq;
}
ATT_FN long long key_offset(const Sequence& s, const Strides& stride, int h_kv, int row) {
  return slice_offset(stride, s.slice) + h_kv * stride.head + (s.kv_first + row) * stride.seq;
}

// Elements before a key of a head in k or v that are paged.
ATT_FN long long key_offset(const PagedKey& key, const Strides& stride, int h_kv) {
  return key.page * stride.batch + h_kv * stride.head + key.row * stride.seq;
}

// Slices along the batch stride.
ATT_FN int slice_count(const ForwardParams& p) { return spec::kIsPacked ? 1 : p.batch; }

// Elements before what a head's first row has one of in the workspace; those of the other rows
// follow.
ATT_FN long long statistic_offset(const ForwardParams& p, const Sequence& s, int h) {
  return (static_cast<long long>(s.slice) * p.heads + h) * p.q_len + s.q_first;
}
ATT_FN long long statistic_offset(const ForwardParams& p, int b, int h) {
  return statistic_offset(p, sequence_of(p, b), h);
}

// Elements before the LSE of row `row` of head number `head` of all slices'; that of the next row
// is kResidues further on.
ATT_FN long long lse_offset(const ForwardParams& p, long long head, int row) {
  if constexpr (spec::kResidues == 1) return head * p.q_len + row;
  const int slice = static_cast<int>(head) / p.heads;
  const long long whole = head - static_cast<long long>(slice - slice / spec::kResidues) * p.heads;
  return (whole * p.q_len + row) * spec::kResidues + slice % spec::kResidues;
}
// The same of head h of a sequence.
ATT_FN long long lse_offset(const ForwardParams& p, const Sequence& s, int h, int row) {
  if constexpr (spec::kResidues == 1) return statistic_offset(p, s, h) + row;
  return lse_offset(p, static_cast<long long>(s.slice) * p.heads + h, row);
}

}  // namespace att
