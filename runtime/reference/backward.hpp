// The fp64 meaning of a spec's backward pass: what every gradient is judged against.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/reference/oracle.hpp"

namespace attune {

// What arrives at the outputs, row-major as they are. Rows without live keys may hold anything, and
// so may those that are no sequence's.
struct OutputGradients {
  std::vector<double> d_o;    // [b, h, q_len, v], of packed sequences [h, q_len, v]
  std::vector<double> d_lse;  // [b, h, q_len], or [h, q_len]; empty: zero
};

// Normal, d_o rounded to the dtype, d_lse to fp32. The same seed gives the same gradients.
OutputGradients random_output_gradients(const AttentionSpec& spec, const ProblemShape& shape,
                                        std::uint64_t seed);

// Rows as a BackwardSample has them: of whole_sample() all that there are.
struct BackwardOracle {
  Expected dq;  // [rows, qk]
  Expected dk;  // [rows, qk]
  Expected dv;  // [rows, v]
  // By slot, of the tensor's sizes; empty where it has no `grad`.
  std::vector<Expected> tensors;
  Expected sink;  // of its logit, [batch, heads]; empty without one
};

// By the definition, of a whole small problem; memory: 32 bytes an element. The limits are eight
// standard deviations of what independent roundings make of an element in a kernel that recomputes
// P from LSE, has O as a forward kernel left it and adds up in fp32; `rounds_p`: and rounds P and
// dS to the dtype for the matrix products, as the GPU families do. Uses all cores. Thread-safe.
BackwardOracle oracle_backward(const AttentionSpec& spec, const HostProblem& problem,
                               const OutputGradients& gradients, bool rounds_p = true);

// A row of dK and dV.
struct KeyRow {
  int b = 0, h_kv = 0, kv_idx = 0;
};

// The gradients that are worked out of a large problem.
struct BackwardSample {
  std::vector<Row> queries;  // rows of dQ
  std::vector<KeyRow> keys;  // in the order of [b, h_kv, kv_len]
};
BackwardSample whole_sample(const HostProblem& problem);
// As stratified_rows(), of dQ and of dK and dV alike: each takes `pairs`. Of packed sequences rows
// at random.
BackwardSample stratified_sample(const HostProblem& problem, std::int64_t pairs, int block,
                                 std::uint64_t seed);

// What the backward pass makes of the O and LSE that it is given, whatever made them: `forward` has
// all rows, as they lie, -inf as the LSE of those without live keys. The result has the sample's
// rows in their order; gradients of tensors and the sink only where the sample has every row of dQ.
// Limits as above, O and LSE being exact.
BackwardOracle oracle_backward(const AttentionSpec& spec, const HostProblem& problem,
                               const HostOutput& forward, const OutputGradients& gradients,
                               const BackwardSample& sample, bool rounds_p = true);

}  // namespace attune
