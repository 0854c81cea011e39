// The backward pass by the arithmetic of a kernel that rounds P and dS for its products, on the
// host: what an oracle's limits must leave room for.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/reference/backward.hpp"
#include "runtime/reference/operands.hpp"

namespace attune::verification {

struct PlainBackward {
  std::vector<double> dq, dk, dv;
  HostOutput forward;
};

// Of one K/V head without a score function; a mask is causal. Sums are fp32's, O and LSE are what
// such a forward pass leaves. With `precision: tf32` whatever is multiplied is rounded to that.
// `faulty` is a key whose part of dS and P row 0 leaves out.
inline PlainBackward plain_backward(const AttentionSpec& spec, const HostProblem& problem,
                                    const OutputGradients& gradients, int faulty = -1) {
  const int q_len = static_cast<int>(problem.shape.q_len);
  const int queries = static_cast<int>(problem.shape.heads) * q_len;
  const int keys = static_cast<int>(problem.shape.kv_len), dim = spec.head_dim_qk;
  std::vector<float> dq(problem.q.size()), dk(problem.k.size()), dv(problem.v.size());
  HostOutput forward;
  const bool is_tf32 = rounds_operands(spec, Arithmetic::kMatrixUnit);
  const auto rounded = [&](double x) { return static_cast<float>(round_to(spec.dtype, x)); };
  const auto operand = [&](double x) {
    return is_tf32 ? static_cast<float>(round_to_tf32(x)) : rounded(x);
  };
  const auto dot = [&](const std::vector<double>& a, int i, const std::vector<double>& b, int j) {
    float sum = 0;
    for (int d = 0; d < dim; ++d)
      sum = std::fma(operand(a[static_cast<std::size_t>(i * dim + d)]),
                     operand(b[static_cast<std::size_t>(j * dim + d)]), sum);
    return sum;
  };
  const auto scale = static_cast<float>(spec.softmax_scale.value);
  for (int q = 0; q < queries; ++q) {
    const int live = spec.mask ? q % q_len + keys - q_len + 1 : keys;
    std::vector<float> scores(static_cast<std::size_t>(live)), p(scores.size());
    float maximum = -std::numeric_limits<float>::infinity();
    for (int k = 0; k < live; ++k) {
      const float score = scale * dot(problem.q, q, problem.k, k);
      scores[static_cast<std::size_t>(k)] = score;
      maximum = std::max(maximum, score);
    }
    float total = 0;
    for (std::size_t k = 0; k < p.size(); ++k) total += p[k] = std::exp(scores[k] - maximum);
    const float lse = maximum + std::log(total);
    forward.lse.push_back(static_cast<double>(lse));
    std::vector<float> o(static_cast<std::size_t>(dim));
    for (int k = 0; k < live; ++k)
      for (int d = 0; d < dim; ++d)
        o[static_cast<std::size_t>(d)] +=
            operand(static_cast<double>(p[static_cast<std::size_t>(k)])) *
            operand(problem.v[static_cast<std::size_t>(k * dim + d)]);
    float row_sum = 0;
    for (int d = 0; d < dim; ++d) {
      const float rounded_o = rounded(o[static_cast<std::size_t>(d)] / total);
      forward.o.push_back(static_cast<double>(rounded_o));
      row_sum += rounded_o * operand(gradients.d_o[static_cast<std::size_t>(q * dim + d)]);
    }
    if (!gradients.d_lse.empty())
      row_sum -= static_cast<float>(gradients.d_lse[static_cast<std::size_t>(q)]);
    for (int k = 0; k < live; ++k) {
      if (q == 0 && k == faulty) continue;
      const float weight = std::exp(scores[static_cast<std::size_t>(k)] - lse);
      const float ds =
          operand(static_cast<double>(weight * (dot(gradients.d_o, q, problem.v, k) - row_sum)));
      for (int d = 0; d < dim; ++d) {
        const auto in_query = static_cast<std::size_t>(q * dim + d);
        const auto in_key = static_cast<std::size_t>(k * dim + d);
        dq[in_query] += ds * operand(problem.k[in_key]);
        dk[in_key] += ds * operand(problem.q[in_query]);
        dv[in_key] += operand(static_cast<double>(weight)) * operand(gradients.d_o[in_query]);
      }
    }
  }
  const auto written = [&](const std::vector<float>& sums, float factor) {
    std::vector<double> values;
    for (const float sum : sums) values.push_back(rounded(sum * factor));
    return values;
  };
  return {written(dq, scale), written(dk, scale), written(dv, 1), forward};
}

}  // namespace attune::verification
