// What the kernels of the oracle of gradients read: one struct for host and device.
#pragma once

#include "templates/params.h"

namespace att {

// Sums that a gradient of what is learned needs an element: of the terms, of the variances of their
// errors, of the terms' squares, and how many there are.
constexpr int kLearnedSums = 4;

struct GradientReferenceParams {
  LaunchParams launch;  // of a backward kernel; only the judge reads d_q, d_k and d_v
  // Rows of dQ, numbered (b * heads + h) * q_len + q_idx, and of dK and dV, (b * kv_heads + h_kv) *
  // kv_len + kv_idx.
  const long long* queries;
  const long long* keys;
  long long query_count, key_count;
  double* deltas;  // [batch, heads, q_len, 2]: D, and the variance of its error
  // Pairs of a value and the largest error that it may have.
  float* d_q;   // [queries, qk, 2]
  float* d_k;   // [keys, qk, 2]
  float* d_v;   // [keys, v, 2]
  float* sink;  // [batch, heads, 2]; null without a sink
  // [elements, kLearnedSums], zero at first; null: not asked.
  double* tensors[kMaxTensors];
  float* worst;  // [queries + keys]: the judge's answer
};

}  // namespace att
