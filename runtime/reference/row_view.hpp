// What the oracle asks of a problem: the keys of one row, their scores' inputs and dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "generator/expr/inexact.hpp"
#include "generator/expr/lowering.hpp"
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
    const HostSpan span = span_of(problem, row.b);
    slice_ = span.slice;
    q_first_ = span.q_first;
    kv_first_ = span.kv_first;
    kv_len_ = span.kv_len;
    point_.q_first = static_cast<std::int32_t>(span.q_first);
    point_.kv_first = static_cast<std::int32_t>(span.kv_first);
    point_.q_len = static_cast<std::int32_t>(span.q_len);
    point_.kv_len = static_cast<std::int32_t>(span.kv_len);
    point_.scalars = problem.scalars;
    point_.tensors = problem.tensors;
    score_varies_by_key_ =
        spec.score != nullptr && expr::depends_on(spec.score, expr::Variable::kKvIdx);
  }

  const double* query() const {
    const ProblemShape& s = problem_.shape;
    return &problem_.q[offset(slice_ * s.heads + row_.h, s.q_len, q_first_ + row_.q_idx,
                              spec_.head_dim_qk)];
  }
  const double* key(std::int64_t kv_idx) const {
    return &problem_.k[key_offset(kv_idx, spec_.head_dim_qk)];
  }
  const double* value(std::int64_t kv_idx) const {
    if (spec_.v_in_k) return key(kv_idx);
    return &problem_.v[key_offset(kv_idx, spec_.head_dim_v)];
  }
  std::int64_t kv_len() const { return kv_len_; }
  // At key 0.
  const expr::Point& point() const { return point_; }
  double scale() const {
    return spec_.softmax_scale.at_launch ? problem_.softmax_scale : spec_.softmax_scale.value;
  }

  bool live(std::int64_t kv_idx) {
    if (spec_.mask == nullptr) return true;
    point_.kv_idx = static_cast<std::int32_t>(kv_idx);
    return expr::evaluate(spec_.mask, point_) != 0;
  }
  // `error`: of the product, at most.
  expr::Inexact score(double scaled_product, std::int64_t kv_idx, double error) {
    if (spec_.score == nullptr) return {scaled_product, error};
    point_.kv_idx = static_cast<std::int32_t>(kv_idx);
    point_.score = scaled_product;
    return expr::evaluate_inexact(spec_.score, point_, error);
  }
  // Of an expression of score, at a key.
  double evaluate(const expr::Expr& expression, double scaled_product, std::int64_t kv_idx) {
    point_.kv_idx = static_cast<std::int32_t>(kv_idx);
    point_.score = scaled_product;
    return expr::evaluate(expression, point_);
  }
  bool score_varies_by_key() const { return score_varies_by_key_; }
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
  std::size_t key_offset(std::int64_t kv_idx, int dim) const {
    const ProblemShape& s = problem_.shape;
    if (const HostPages& pages = problem_.pages; !pages.empty()) {
      return offset(pages.page_of(row_.b, kv_idx) * s.kv_heads + kv_head_, pages.size,
                    kv_idx % pages.size, dim);
    }
    return offset(slice_ * s.kv_heads + kv_head_, s.kv_len, kv_first_ + kv_idx, dim);
  }

  const AttentionSpec& spec_;
  const HostProblem& problem_;
  const Row row_;
  int kv_head_ = 0;
  std::int64_t slice_ = 0, q_first_ = 0, kv_first_ = 0, kv_len_ = 0;
  unsigned drop_below_ = 0;
  bool score_varies_by_key_ = false;
  expr::Point point_;
};

struct Dot {
  double sum = 0;
  double squares = 0;  // of the terms
};
// Eight independent sums, which compilers turn into vector code.
inline Dot dot_of(const double* a, const double* b, int count) {
  double sums[8] = {}, squares[8] = {};
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const double term = a[i + j] * b[i + j];
      sums[j] += term;
      squares[j] += term * term;
    }
  }
  Dot dot;
  for (; i < count; ++i) {
    sums[i % 8] += a[i] * b[i];
    squares[i % 8] += a[i] * b[i] * (a[i] * b[i]);
  }
  for (int j = 0; j < 8; ++j) {
    dot.sum += sums[j];
    dot.squares += squares[j];
  }
  return dot;
}

}  // namespace attune
