// The fp64 meaning of a spec: what every kernel is judged against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/spec/spec.hpp"

namespace attune {

// Host copies of one problem, widened to double, row-major: q [b, h, q_len, qk], k [b, h_kv, kv_len, qk],
// v [b, h_kv, kv_len, v]. Values are exactly representable in the spec's dtype.
struct HostProblem {
  ProblemShape shape;
  std::vector<double> q, k, v;
  std::vector<double> scalars;                   // by slot
  std::vector<expr::TensorValues> tensors;       // by slot
  double softmax_scale = 0;                      // used when the spec leaves it to the launch
  double dropout = 0;                            // likewise
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
};

struct HostOutput {
  std::vector<double> o;    // [b, h, q_len, v]
  std::vector<double> lse;  // [b, h, q_len]
};

// Fresh random inputs for `spec`: normal q, k, v rounded to the dtype; tensors drawn so that masks are neither
// empty nor full (document numbers ascending, ...).
HostProblem random_problem(const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed);

// The definition, in fp64. Rows may be limited to keep large shapes affordable: empty means all; otherwise (b, h, q_idx) triples and
// outputs hold just those rows.
HostOutput oracle_forward(const AttentionSpec& spec, const HostProblem& problem);

// The same computation in the spec's dtype, plainly: matrix products accumulated in fp32, P rounded to the dtype.
// Its error is the yardstick of the 2x rule.
HostOutput plain_forward(const AttentionSpec& spec, const HostProblem& problem);

// FlashAttention's rule per element, non-finite pattern first: |out - oracle| <= 2 max|plain - oracle| + atol.
// Returns an empty string, or what is wrong with the first offending element and how many there are.
std::string compare(const HostOutput& out, const HostOutput& oracle, const HostOutput& plain);

// True when the element is dropped. templates/tile/dropout.cuh computes the same bits.
bool dropped(std::uint64_t seed, std::uint64_t offset, unsigned drop_below, int heads, int b, int h, int q_idx, int kv_idx);

}  // namespace attune
