#include "tests/gpu/score_offsets.hpp"

#include <numbers>

namespace attune::gpu_test {

ScoreOffsets beyond_in_three_of_four_heads(int head, int q_idx) {
  if (q_idx % 8 != 5) return {};
  constexpr ScoreOffsets kOfHead[] = {{200, 200}, {-250, -250}, {0, 150}, {}};
  return kOfHead[head % 4];
}

void offset_scores(const AttentionSpec& spec, HostProblem& problem, int late_from,
                   const OffsetsOfRow& offsets) {
  constexpr double kKeyValue = 16;
  const double unit = kKeyValue * spec.softmax_scale.value * std::numbers::log2e;
  const auto dim = static_cast<std::size_t>(spec.head_dim_qk);
  const ProblemShape& shape = problem.shape;
  double* key = problem.k.data();
  for (std::int64_t i = 0; i < shape.batch * shape.kv_heads * shape.kv_len; ++i, key += dim) {
    const bool is_late = i % shape.kv_len >= late_from;
    key[0] = is_late ? 0 : kKeyValue;
    key[1] = is_late ? kKeyValue : 0;
    key[kSpareDim] = 1;
  }
  double* query = problem.q.data();
  for (std::int64_t i = 0; i < shape.batch * shape.heads * shape.q_len; ++i, query += dim) {
    const ScoreOffsets row =
        offsets(static_cast<int>(i / shape.q_len), static_cast<int>(i % shape.q_len));
    query[0] = round_to(spec.dtype, row.early / unit);
    query[1] = round_to(spec.dtype, row.late / unit);
    query[kSpareDim] = 0;
  }
}

}  // namespace attune::gpu_test
