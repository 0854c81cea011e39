#include "runtime/reference/backward.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "generator/spec/shape.hpp"
#include "runtime/reference/backward_part.hpp"
#include "runtime/reference/operands.hpp"
#include "runtime/support/parallel.hpp"

namespace attune {
namespace {

// Of the rows of a (batch, kv head): enough to keep many processors busy, and no more than their
// sums of dK and dV, 32 bytes an element, leave memory for.
std::int64_t parts_of_head(const AttentionSpec& spec, const ProblemShape& shape,
                           const Selection& selection) {
  constexpr std::int64_t kParts = 64, kElements = std::int64_t{1} << 24;
  std::size_t most = 1;
  for (const Selection::KeysOfHead& head : selection.keys)
    most = std::max(most, head.wanted.size());
  const std::int64_t heads = shape.batch * shape.kv_heads;
  const std::int64_t elements =
      static_cast<std::int64_t>(most) * (spec.head_dim_qk + spec.head_dim_v) * heads;
  return std::clamp<std::int64_t>(std::min(kParts / heads, kElements / elements), 1, shape.q_len);
}

BackwardOracle oracle_of_operands(const AttentionSpec& spec, const HostProblem& problem,
                                  const Given& given, const BackwardSample& sample, bool rounds_p) {
  const Roundings allowed = roundings(spec.dtype, spec.precision, rounds_p);
  const Derivatives derivatives = derivatives_of(spec);
  const ProblemShape& s = problem.shape;
  const Selection selection(problem, sample);
  const auto qk = static_cast<std::size_t>(spec.head_dim_qk);
  const auto v = static_cast<std::size_t>(spec.head_dim_v);
  Sums dq(sample.queries.size() * qk), dk(sample.keys.size() * qk), dv(sample.keys.size() * v);
  const std::int64_t splits = parts_of_head(spec, s, selection);
  std::vector<Part> parts;
  for (std::int64_t i = 0; i < s.batch * s.kv_heads * splits; ++i)
    parts.emplace_back(spec, problem, given, derivatives, allowed, selection, i / splits, dq);
  parallel_for(static_cast<std::int64_t>(parts.size()), [&](std::int64_t i) {
    const std::int64_t head = i / splits, split = i % splits;
    const int b = static_cast<int>(head / s.kv_heads);
    const std::int64_t q_len = span_of(problem, b).q_len;
    const std::int64_t in_group = s.heads / s.kv_heads, rows = in_group * q_len;
    for (std::int64_t row = rows * split / splits; row < rows * (split + 1) / splits; ++row) {
      parts[static_cast<std::size_t>(i)].add_row(
          {.b = b,
           .h = static_cast<int>(head % s.kv_heads * in_group + row / q_len),
           .q_idx = static_cast<int>(row % q_len)});
    }
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t first = selection.keys[i / static_cast<std::size_t>(splits)].first;
    dk.add(parts[i].dk, first * qk);
    dv.add(parts[i].dv, first * v);
  }
  // Scaled in fp32, then rounded.
  const auto in_dtype = [&](const char* name, std::size_t width, Sums& sums) {
    return finished(name, width, std::move(sums), allowed.truncation,
                    allowed.dtype + 4 * kLargestFp32Rounding, allowed.smallest);
  };
  BackwardOracle oracle{
      .dq = in_dtype("dq", qk, dq), .dk = in_dtype("dk", qk, dk), .dv = in_dtype("dv", v, dv)};
  const auto in_fp32 = [](const std::string& of, Sums& sums) {
    return finished("the gradient of " + of, 1, std::move(sums), 0, kLargestFp32Rounding,
                    std::numeric_limits<float>::min());
  };
  const bool is_whole = sample.queries.size() == all_rows(problem).size();
  if (is_whole && spec.sink != nullptr) {
    Sums sums(parts.front().sink.values.size());
    for (const Part& part : parts) sums.add(part.sink);
    oracle.sink = in_fp32("the sink", sums);
  }
  for (std::size_t slot = 0; slot < spec.environment.tensors.size() && is_whole; ++slot) {
    Sums sums(parts.front().tensors[slot].values.size());
    for (const Part& part : parts) sums.add(part.tensors[slot]);
    oracle.tensors.push_back(in_fp32(spec.environment.tensors[slot].name, sums));
  }
  return oracle;
}

BackwardOracle oracle_of(const AttentionSpec& spec, const HostProblem& problem, const Given& given,
                         const BackwardSample& sample, bool rounds_p) {
  const Arithmetic arithmetic = rounds_p ? Arithmetic::kMatrixUnit : Arithmetic::kVector;
  if (!rounds_operands(spec, arithmetic))
    return oracle_of_operands(spec, problem, given, sample, rounds_p);
  const OutputGradients gradients = with_tf32_operands(given.gradients);
  return oracle_of_operands(spec, with_tf32_operands(problem), {gradients, given.forward}, sample,
                            rounds_p);
}

}  // namespace

OutputGradients random_output_gradients(const AttentionSpec& spec, const ProblemShape& shape,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto rows = static_cast<std::size_t>(slice_count(spec, shape) * shape.heads * shape.q_len);
  OutputGradients gradients;
  gradients.d_o.resize(rows * static_cast<std::size_t>(spec.head_dim_v));
  gradients.d_lse.resize(rows);
  for (double& value : gradients.d_o) value = round_to(spec.dtype, normal(random));
  for (double& value : gradients.d_lse) value = round_to(DType::kF32, normal(random));
  return gradients;
}

BackwardSample whole_sample(const HostProblem& problem) {
  const ProblemShape& shape = problem.shape;
  BackwardSample sample{.queries = all_rows(problem), .keys = {}};
  for (int b = 0; b < shape.batch; ++b) {
    const std::int64_t kv_len = span_of(problem, b).kv_len;
    for (int h = 0; h < shape.kv_heads; ++h) {
      for (int k = 0; k < kv_len; ++k) sample.keys.push_back({b, h, k});
    }
  }
  return sample;
}

namespace {

// Some of `rows` in their order: at random, as many as keep the sum of `pairs_of` below `pairs`.
template <typename RowType, typename PairsOf>
std::vector<RowType> at_random(const std::vector<RowType>& rows, std::int64_t pairs,
                               std::uint64_t seed, const PairsOf& pairs_of) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  std::size_t count = 0;
  while (count < order.size() && pairs > 0) pairs -= pairs_of(rows[order[count++]].b);
  order.resize(count);
  std::ranges::sort(order);
  std::vector<RowType> chosen;
  for (const std::size_t i : order) chosen.push_back(rows[i]);
  return chosen;
}

}  // namespace

BackwardSample stratified_sample(const HostProblem& problem, std::int64_t pairs, int block,
                                 std::uint64_t seed) {
  const ProblemShape& shape = problem.shape;
  if (!problem.sequences.empty()) {
    BackwardSample all = whole_sample(problem);
    all.queries =
        at_random(all.queries, pairs, seed, [&](int b) { return span_of(problem, b).kv_len; });
    const std::int64_t group = shape.heads / shape.kv_heads;
    all.keys = at_random(all.keys, pairs, seed + 1,
                         [&](int b) { return group * span_of(problem, b).q_len; });
    return all;
  }
  BackwardSample sample{.queries = stratified_rows(shape, pairs, seed, block), .keys = {}};
  // A key's pairs are with the queries of all heads that share it.
  ProblemShape turned = shape;
  turned.heads = shape.kv_heads;
  turned.q_len = shape.kv_len;
  turned.kv_len = shape.q_len * (shape.heads / shape.kv_heads);
  for (const Row& row : stratified_rows(turned, pairs, seed + 1, block))
    sample.keys.push_back({row.b, row.h, row.q_idx});
  return sample;
}

BackwardOracle oracle_backward(const AttentionSpec& spec, const HostProblem& problem,
                               const OutputGradients& gradients, bool rounds_p) {
  return oracle_of(spec, problem, {gradients, nullptr}, whole_sample(problem), rounds_p);
}

BackwardOracle oracle_backward(const AttentionSpec& spec, const HostProblem& problem,
                               const HostOutput& forward, const OutputGradients& gradients,
                               const BackwardSample& sample, bool rounds_p) {
  return oracle_of(spec, problem, {gradients, &forward}, sample, rounds_p);
}

}  // namespace attune
