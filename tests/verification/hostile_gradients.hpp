// Magnitudes that gradients get wrong first: what is done to a random problem, or to what arrives
// at its outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <vector>

#include "runtime/reference/backward.hpp"

namespace attune::hostile {

// Shapes must have as many rows as are changed below: 80 queries, 120 keys.

// Element `dim` of every row of a matrix, or of one row.
template <typename ValueOf>
void set_column(std::vector<double>& matrix, std::int64_t width, std::int64_t dim,
                const ValueOf& value_of) {
  for (std::int64_t row = 0; row * width < static_cast<std::int64_t>(matrix.size()); ++row)
    matrix[static_cast<std::size_t>(row * width + dim)] = value_of(row);
}

inline void scale(DType dtype, std::vector<double>& matrix, std::int64_t width, std::int64_t first,
                  std::int64_t end, double factor) {
  for (auto i = static_cast<std::size_t>(first * width); i < static_cast<std::size_t>(end * width);
       ++i)
    matrix[i] = round_to(dtype, matrix[i] * factor);
}

// As large as makes a score of a key whose element there is 1.
inline double query_of_score(const AttentionSpec& spec, double score) {
  return round_to(spec.dtype, score / spec.softmax_scale.value);
}

// By 80 or -80, or not at all, rows of a tile beside one another.
inline void shift_scores(const AttentionSpec& spec, HostProblem& problem) {
  set_column(problem.k, spec.head_dim_qk, 0, [](std::int64_t) { return 1.0; });
  set_column(problem.q, spec.head_dim_qk, 0, [&](std::int64_t row) {
    return query_of_score(spec, row % 3 == 0 ? 80 : row % 3 == 1 ? -80 : 0);
  });
}

// Beside its probability, which is 1, all others are nothing.
inline void heat_a_key(const AttentionSpec& spec, HostProblem& problem) {
  const std::int64_t keys = problem.shape.kv_len;
  set_column(problem.k, spec.head_dim_qk, 1,
             [&](std::int64_t row) { return row % keys == keys * 4 / 7 ? 1.0 : 0.0; });
  set_column(problem.q, spec.head_dim_qk, 1,
             [&](std::int64_t) { return query_of_score(spec, 100); });
}

inline void sharpen_scores(const AttentionSpec& spec, HostProblem& problem) {
  for (double& value : problem.q) value = round_to(spec.dtype, 12 * value);
}

// Student's distribution with two degrees of freedom: a few elements outweigh all others.
inline void draw_heavy_tails(DType dtype, std::vector<double>& values, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::student_t_distribution<double> student(2);
  for (double& value : values) value = round_to(dtype, student(random));
}
inline void draw_heavy_tails(const AttentionSpec& spec, HostProblem& problem) {
  draw_heavy_tails(spec.dtype, problem.q, 1);
  draw_heavy_tails(spec.dtype, problem.k, 2);
  draw_heavy_tails(spec.dtype, problem.v, 3);
}
// In fp16 they would leave its range: dS is as large as dO and V together, and is rounded to it.
inline void draw_heavy_tails_of_gradients(const AttentionSpec& spec, OutputGradients& given) {
  if (spec.dtype != DType::kF16) draw_heavy_tails(spec.dtype, given.d_o, 4);
}

inline void zero_rows(const AttentionSpec& spec, HostProblem& problem) {
  scale(spec.dtype, problem.q, spec.head_dim_qk, 10, 40, 0);
  scale(spec.dtype, problem.k, spec.head_dim_qk, 30, 60, 0);
  scale(spec.dtype, problem.v, spec.head_dim_v, 50, 120, 0);
}
inline void zero_rows_of_gradients(const AttentionSpec& spec, OutputGradients& given) {
  scale(spec.dtype, given.d_o, spec.head_dim_v, 30, 80, 0);
}

// In fp16 less, for the same reason: dS has the sum of a whole row of dO.
inline void enlarge_a_row(const AttentionSpec& spec, OutputGradients& given) {
  scale(spec.dtype, given.d_o, spec.head_dim_v, 77, 78, spec.dtype == DType::kF16 ? 500 : 1e4);
}

// Null: nothing is done to it.
struct Hostility {
  const char* name;
  void (*to_inputs)(const AttentionSpec&, HostProblem&);
  void (*to_gradients)(const AttentionSpec&, OutputGradients&);
};
inline void PrintTo(const Hostility& hostility, std::ostream* out) { *out << hostility.name; }
inline constexpr Hostility kHostilities[] = {
    {"ShiftedScores", shift_scores, nullptr},
    {"OneHotKey", heat_a_key, nullptr},
    {"SharpScores", sharpen_scores, nullptr},
    {"HeavyTails", draw_heavy_tails, draw_heavy_tails_of_gradients},
    {"OneHugeRowOfDO", nullptr, enlarge_a_row},
    {"RowsOfZeros", zero_rows, zero_rows_of_gradients},
};

// Whether the dtype holds all that is expected, at a distance: what overflows is right nowhere.
inline bool holds(DType dtype, const BackwardOracle& oracle) {
  if (dtype != DType::kF16) return true;
  constexpr double kLargest = 65504;
  return std::ranges::all_of(std::vector{&oracle.dq, &oracle.dk, &oracle.dv}, [](const auto* of) {
    return std::ranges::all_of(of->values, [](double x) { return std::abs(x) < kLargest / 2; });
  });
}

}  // namespace attune::hostile
