// The fp64 meaning of a spec: what every kernel is judged against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/expr/evaluator.hpp"
#include "generator/spec/spec.hpp"
#include "runtime/reference/judge.hpp"
#include "runtime/reference/tolerance.hpp"

namespace attune {

// Where the sequences of a packed problem lie among all tokens; nothing of any other problem.
struct HostSequences {
  std::vector<std::int32_t> cu_q, cu_kv;      // [batch + 1], ascending from 0; paged keys: no cu_kv
  std::vector<std::int32_t> used_q, used_kv;  // [batch]; empty: all of each

  bool empty() const { return cu_q.empty(); }
  std::int64_t q_first(int b) const { return cu_q[static_cast<std::size_t>(b)]; }
  std::int64_t kv_first(int b) const {
    return cu_kv.empty() ? 0 : cu_kv[static_cast<std::size_t>(b)];
  }
  std::int64_t q_len(int b) const { return length(cu_q, used_q, b); }
  std::int64_t kv_len(int b) const { return length(cu_kv, used_kv, b); }

 private:
  static std::int64_t length(const std::vector<std::int32_t>& cu,
                             const std::vector<std::int32_t>& used, int b) {
    const auto at = static_cast<std::size_t>(b);
    return used.empty() ? cu[at + 1] - cu[at] : used[at];
  }
};

// The pages that keys of a paged problem lie in; nothing of any other problem.
struct HostPages {
  std::vector<std::int32_t> table;  // [batch, per_sequence], numbers of pages; -1: none
  std::int64_t per_sequence = 0, size = 0, count = 0;

  bool empty() const { return count == 0; }
  std::int64_t page_of(int b, std::int64_t kv_idx) const {
    return table[static_cast<std::size_t>(b * per_sequence + kv_idx / size)];
  }
};

// What stored elements of K or V are multiplied by; nothing where they are not.
struct HostScales {
  std::vector<double> values;                      // each an fp32; empty: all are 1
  std::int64_t slice_stride = 0, head_stride = 0;  // a slice is a page, or a sequence not packed

  double of(std::int64_t slice, std::int64_t head) const {
    if (values.empty()) return 1;
    return values[static_cast<std::size_t>(slice * slice_stride + head * head_stride)];
  }
};

// Host copies of one problem, widened to double, row-major: q [b, h, q_len, qk], k [b, h_kv,
// kv_len, qk], v [b, h_kv, kv_len, v]; of a packed one without the b, over all tokens; with pages k
// [page, h_kv, row, qk] and v likewise. Values are exactly representable in the spec's dtype; those
// of K and V with a dtype of their own are a value of that times its scale, exactly.
struct HostProblem {
  ProblemShape shape;
  std::vector<double> q, k, v;
  std::vector<double> scalars;              // by slot
  std::vector<expr::TensorValues> tensors;  // by slot
  double softmax_scale = 0;                 // used when the spec leaves it to the launch
  double dropout = 0;                       // likewise
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  HostSequences sequences = {};
  HostPages pages = {};
  HostScales k_scales = {}, v_scales = {};  // of a spec with a kv_dtype; k and v are what they make
};

// One row of the output.
struct Row {
  int b = 0, h = 0, q_idx = 0;
};

struct HostOutput {
  std::vector<double> o;    // [b, h, q_len, v], or [rows, v]
  std::vector<double> lse;  // [b, h, q_len], or [rows]
};

// Fresh random inputs for `spec`: normal q, k, v rounded to the dtype; tensors drawn so that masks
// are neither empty nor full; sequences as spec.lengths says, else packed ones of any lengths, some
// of them 0, that sum to the shape's; with pages of spec.page_size, and NaN where no key lies. The
// same seed gives the same problem.
HostProblem random_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           std::uint64_t seed);

// All rows of a shape in the order of HostOutput.
std::vector<Row> all_rows(const ProblemShape& shape);
// The same of a problem, whose sequences may be packed: those that it has.
std::vector<Row> all_rows(const HostProblem& problem);
std::vector<Row> sample_rows(const HostProblem& problem, int count, std::uint64_t seed);
// Of sequence b of the batch: where its rows lie among those of its slice, and how long it is.
struct HostSpan {
  std::int64_t slice, q_first, q_len, kv_first, kv_len;
};
HostSpan span_of(const HostProblem& problem, int b);
// The place of a row of o and lse, as a problem's outputs lie: [b, h, q_len], packed [h, q_len].
std::size_t row_of_outputs(const HostProblem& problem, const Row& row);
// At most `count` different rows: both ends of the sequence, and the rest at random.
std::vector<Row> sample_rows(const ProblemShape& shape, int count, std::uint64_t seed);
// Rows of every `block` queries (from a multiple of it on) of every head, in the order of
// HostOutput: as many of them as keep rows times kv_len below `pairs`, but one at least; at random,
// but the first or last of a sequence is among its block's. No tile and no warp has fewer rows than
// 16.
std::vector<Row> stratified_rows(const ProblemShape& shape, std::int64_t pairs, std::uint64_t seed,
                                 std::int64_t block = 16);

struct ForwardOracle {
  Expected o;    // [b, h, q_len, v], or [rows, v]
  Expected lse;  // [b, h, q_len], or [rows]
};

// The definition, in fp64, for the given rows, and what each element may be off by for the
// roundings that its own row cannot be without (docs/verification.md). A key whose score is -inf is
// dead; a row without live key is o = 0, lse = -inf. Uses all cores.
ForwardOracle oracle_forward(const AttentionSpec& spec, const HostProblem& problem,
                             const std::vector<Row>& rows,
                             Arithmetic arithmetic = Arithmetic::kMatrixUnit);
ForwardOracle oracle_forward(const AttentionSpec& spec, const HostProblem& problem,
                             Arithmetic arithmetic = Arithmetic::kMatrixUnit);

// The verdict on both outputs: the one that is wrong, else the one that is nearer to it. An empty
// lse, which a launch without it gives, is wrong.
Verdict compare(const HostOutput& out, const ForwardOracle& oracle);

// `value` rounded to the nearest of the dtype, ties to even; too large becomes infinite (fp8: NaN).
double round_to(DType dtype, double value);

// True when the element is dropped. templates/tile/dropout.cuh computes the same bits.
bool dropped(std::uint64_t seed, std::uint64_t offset, unsigned drop_below, int heads, int b, int h,
             int q_idx, int kv_idx);
// A probability in steps of 1/256, as the kernels take it.
unsigned dropout_drop_below(double probability);

}  // namespace attune
