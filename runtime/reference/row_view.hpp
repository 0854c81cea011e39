// What oracle and plain computation share: the keys of one row, their weights' inputs and dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/reference/oracle.hpp"

namespace attune {

// One output row of a problem, with what its evaluation needs. Views `spec` and `problem`.
class RowView {
 public:
  RowView(const AttentionSpec& spec, const HostProblem& problem, const Row& row)
      : spec_(spec), problem_(problem), row_(row) {
    const ProblemShape& s = problem.shape;
    kv_head_ = row.h / static_cast<int>(s.heads / s.kv_heads);
    drop_below_ = dropout_drop_below(spec.dropout.at_launch ? problem.dropout : spec.dropout.value);
    point_.b = row.b;
    point_.h = row.h;
    point_.h_kv = kv_head_;
    point_.q_idx = row.q_idx;
    point_.q_len = static_cast<std::int32_t>(s.q_len);
    point_.kv_len = static_cast<std::int32_t>(s.kv_len);
    point_.scalars = problem.scalars;
    point_.tensors = problem.tensors;
  }

  const double* query() const {
    const ProblemShape& s = problem_.shape;
    return &problem_.q[offset(row_.b * s.heads + row_.h, s.q_len, row_.q_idx, spec_.head_dim_qk)];
  }
  const double* key(std::int64_t kv_idx) const {
    const ProblemShape& s = problem_.shape;
    return &problem_.k[offset(row_.b * s.kv_heads + kv_head_, s.kv_len, kv_idx, spec_.head_dim_qk)];
  }
  const double* value(std::int64_t kv_idx) const {
    const ProblemShape& s = problem_.shape;
    return &problem_.v[offset(row_.b * s.kv_heads + kv_head_, s.kv_len, kv_idx, spec_.head_dim_v)];
  }
  double scale() const {
    return spec_.softmax_scale.at_launch ? problem_.softmax_scale : spec_.softmax_scale.value;
  }

  bool live(std::int64_t kv_idx) {
    if (spec_.mask == nullptr) return true;
    point_.kv_idx = static_cast<std::int32_t>(kv_idx);
    return expr::evaluate(spec_.mask, point_) != 0;
  }
  double score(double scaled_product, std::int64_t kv_idx) {
    if (spec_.score == nullptr) return scaled_product;
    point_.kv_idx = static_cast<std::int32_t>(kv_idx);
    point_.score = scaled_product;
    return expr::evaluate(spec_.score, point_);
  }
  // -inf without one.
  double sink() const {
    if (spec_.sink == nullptr) return -std::numeric_limits<double>::infinity();
    return expr::evaluate(spec_.sink, point_);
  }
  bool is_dropped(std::int64_t kv_idx) const {
    return drop_below_ > 0 && dropped(problem_.dropout_seed, problem_.dropout_offset, drop_below_,
                                      static_cast<int>(problem_.shape.heads), row_.b, row_.h,
                                      row_.q_idx, static_cast<int>(kv_idx));
  }
  double keep_scale() const { return 256.0 / (256.0 - drop_below_); }

 private:
  static std::size_t offset(std::int64_t head, std::int64_t length, std::int64_t index, int dim) {
    return static_cast<std::size_t>((head * length + index) * dim);
  }

  const AttentionSpec& spec_;
  const HostProblem& problem_;
  const Row row_;
  int kv_head_ = 0;
  unsigned drop_below_ = 0;
  expr::Point point_;
};

// a * b + c, rounded once: the product of two fp32 values is exact in fp64.
inline float fused(double a, double b, float c) { return static_cast<float>(a * b + c); }
inline double fused(double a, double b, double c) { return a * b + c; }

// Dot product. In fp64 eight independent sums, which compilers turn into vector code. In fp32 what
// a matrix product does for one element of its result: one chain of fused multiply-adds in a
// register, over all of the inner dimension on a GPU, over blocks of a few hundred in a BLAS.
// (Unfused, it would excuse kernels that err 1.4 times as much. In blocks over the keys as well,
// the yardstick would be one that no online softmax reaches, for its O is one sum over all keys:
// measured, the CPU family's errors are 2.8 times as large then, and 1.0 to 1.3 times with one
// chain.)
inline double dot(const double* a, const double* b, int count, double) {
  double sums[8] = {};
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}
inline float dot(const double* a, const double* b, int count, float) {
  float total = 0;
  for (int i = 0; i < count; ++i) total = fused(a[i], b[i], total);
  return total;
}

}  // namespace attune
