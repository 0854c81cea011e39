#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "generator/spec/draw_tensor.hpp"
#include "runtime/reference/cache_scales.hpp"
#include "runtime/reference/draw_sequences.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/reference/pages.hpp"
#include "runtime/support/problem_layout.hpp"

namespace attune {
namespace {

using Random = std::mt19937_64;

std::vector<double> normal_values(std::int64_t count, DType dtype, Random& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = round_to(dtype, normal(random));
  return values;
}

// Reals as the tensor's type holds them.
void round_values(expr::TensorType type, std::vector<double>& values) {
  const bool is_real = type != expr::TensorType::kInt32 && type != expr::TensorType::kBool;
  if (!is_real) return;
  const DType dtype = type == expr::TensorType::kFloat16    ? DType::kF16
                      : type == expr::TensorType::kBFloat16 ? DType::kBf16
                                                            : DType::kF32;
  for (double& value : values) value = round_to(dtype, value);
}

void draw_paged(const AttentionSpec& spec, HostProblem& problem, Random& random) {
  const ProblemShape& shape = problem.shape;
  problem.sequences = draw_paged_sequences(spec, shape, random);
  const auto common =
      static_cast<std::int32_t>(std::min<std::int64_t>(shape.kv_len, spec.shared_prefix));
  problem.pages =
      draw_pages(problem.sequences.used_kv, shape.kv_len, spec.page_size, random, common);
}

}  // namespace

HostProblem random_problem(const AttentionSpec& spec, const ProblemShape& shape,
                           std::uint64_t seed) {
  Random random(seed);
  HostProblem problem;
  problem.shape = shape;
  if (is_paged(spec)) draw_paged(spec, problem, random);
  const std::int64_t queries = slice_count(spec, shape) * shape.heads * shape.q_len;
  const std::int64_t rows =
      is_paged(spec) ? problem.pages.count * problem.pages.size : key_rows(spec, shape);
  const std::int64_t keys = rows * shape.kv_heads;
  problem.q = normal_values(queries * spec.head_dim_qk, spec.dtype, random);
  problem.k = normal_values(keys * spec.head_dim_qk, spec.dtype, random);
  if (!spec.v_in_k) problem.v = normal_values(keys * spec.head_dim_v, spec.dtype, random);
  if (has_scaled_cache(spec)) quantise_cache(spec, problem, ScaleKind::kPerPage, random);
  for (const expr::ScalarDecl& scalar : spec.environment.scalars) {
    if (scalar.is_constant) {
      problem.scalars.push_back(scalar.value);
    } else if (scalar.type == expr::Type::kFloat32) {
      std::uniform_real_distribution<double> uniform(1, 30);
      problem.scalars.push_back(round_to(DType::kF32, uniform(random)));
    } else if (scalar.type == expr::Type::kInt32) {
      std::uniform_int_distribution<std::int64_t> uniform(
          1, std::max<std::int64_t>(1, shape.kv_len / 2));
      problem.scalars.push_back(static_cast<double>(uniform(random)));
    } else {
      problem.scalars.push_back(1);
    }
  }
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    const expr::TensorDecl& tensor = spec.environment.tensors[slot];
    problem.tensors.push_back(draw_tensor(tensor, sample_of(spec, slot), shape, random));
    round_values(tensor.type, problem.tensors.back().values);
  }
  problem.softmax_scale = round_to(DType::kF32, 1 / std::sqrt(spec.head_dim_qk));
  problem.dropout = 0.125;
  problem.dropout_seed = random();
  problem.dropout_offset = random();
  if (is_paged(spec)) {
    spoil_unused(spec, problem);
  } else if (is_packed(spec)) {
    problem.sequences = draw_packed_sequences(spec, shape, random);
  }
  return problem;
}

std::vector<Row> all_rows(const ProblemShape& shape) {
  std::vector<Row> rows;
  for (int b = 0; b < shape.batch; ++b) {
    for (int h = 0; h < shape.heads; ++h) {
      for (int q = 0; q < shape.q_len; ++q) rows.push_back({b, h, q});
    }
  }
  return rows;
}

std::vector<Row> all_rows(const HostProblem& problem) {
  if (problem.sequences.empty()) return all_rows(problem.shape);
  std::vector<Row> rows;
  for (int b = 0; b < problem.shape.batch; ++b) {
    for (int h = 0; h < problem.shape.heads; ++h) {
      for (int q = 0; q < problem.sequences.q_len(b); ++q) rows.push_back({b, h, q});
    }
  }
  return rows;
}

HostSpan span_of(const HostProblem& problem, int b) {
  const HostSequences& packed = problem.sequences;
  if (packed.empty()) return {b, 0, problem.shape.q_len, 0, problem.shape.kv_len};
  return {0, packed.q_first(b), packed.q_len(b), packed.kv_first(b), packed.kv_len(b)};
}

std::size_t row_of_outputs(const HostProblem& problem, const Row& row) {
  const ProblemShape& s = problem.shape;
  const HostSpan span = span_of(problem, row.b);
  return static_cast<std::size_t>((span.slice * s.heads + row.h) * s.q_len + span.q_first +
                                  row.q_idx);
}

std::vector<Row> sample_rows(const HostProblem& problem, int count, std::uint64_t seed) {
  if (problem.sequences.empty()) return sample_rows(problem.shape, count, seed);
  Random random(seed);
  std::vector<Row> rows = all_rows(problem);
  if (static_cast<std::int64_t>(rows.size()) <= count) return rows;
  std::ranges::shuffle(rows, random);
  rows.resize(static_cast<std::size_t>(count));
  return rows;
}

std::vector<Row> sample_rows(const ProblemShape& shape, int count, std::uint64_t seed) {
  if (shape.batch * shape.heads * shape.q_len <= count) return all_rows(shape);
  Random random(seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<int>(std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random));
  };
  std::set<std::tuple<int, int, int>> chosen;
  const int last = static_cast<int>(shape.q_len - 1);
  for (const int q : {0, last}) {
    if (static_cast<int>(chosen.size()) < count)
      chosen.emplace(below(shape.batch), below(shape.heads), q);
  }
  while (static_cast<int>(chosen.size()) < count) {
    chosen.emplace(below(shape.batch), below(shape.heads), below(shape.q_len));
  }
  std::vector<Row> rows;
  for (const auto& [b, h, q] : chosen) rows.push_back({b, h, q});
  return rows;
}

std::vector<Row> stratified_rows(const ProblemShape& shape, std::int64_t pairs, std::uint64_t seed,
                                 std::int64_t block) {
  Random random(seed);
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t blocks = (shape.q_len + block - 1) / block;
  const std::int64_t wanted =
      std::clamp<std::int64_t>(pairs / shape.kv_len / (heads * blocks), 1, block);
  std::vector<Row> rows;
  std::vector<int> of_block;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t first = 0; first < shape.q_len; first += block) {
      const std::int64_t end = std::min(first + block, shape.q_len);
      of_block.resize(static_cast<std::size_t>(end - first));
      std::iota(of_block.begin(), of_block.end(), static_cast<int>(first));
      std::ranges::shuffle(of_block, random);
      // Both ends of a sequence are special.
      if (first == 0) std::iter_swap(of_block.begin(), std::ranges::find(of_block, 0));
      if (end == shape.q_len)
        std::iter_swap(of_block.begin(), std::ranges::find(of_block, end - 1));
      of_block.resize(std::min(of_block.size(), static_cast<std::size_t>(wanted)));
      std::ranges::sort(of_block);
      for (const int q : of_block) {
        rows.push_back(
            {static_cast<int>(head / shape.heads), static_cast<int>(head % shape.heads), q});
      }
    }
  }
  return rows;
}

}  // namespace attune
