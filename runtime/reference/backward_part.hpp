// What single rows of a problem add to its gradients: the arithmetic of the backward oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "runtime/reference/gradient_sums.hpp"
#include "runtime/reference/row_view.hpp"

namespace attune {

struct Derivatives {
  expr::Expr score;  // null: 1
  std::vector<expr::LookUpDerivative> in_score, in_sink;
};

inline Derivatives derivatives_of(const AttentionSpec& spec) {
  Derivatives derivatives;
  if (spec.score) {
    derivatives.score = expr::derivative(spec.score, expr::make_variable(expr::Variable::kScore));
    derivatives.in_score = expr::look_up_derivatives(spec.score, spec.environment);
  }
  derivatives.in_sink = expr::look_up_derivatives(spec.sink, spec.environment);
  return derivatives;
}

inline constexpr int kUnwanted = -1;

inline std::size_t rows_of_outputs(const HostProblem& problem) {
  const std::int64_t slices = problem.sequences.empty() ? problem.shape.batch : 1;
  return static_cast<std::size_t>(slices * problem.shape.heads * problem.shape.q_len);
}

// Where the gradients that are asked for go.
struct Selection {
  Selection(const HostProblem& problem, const BackwardSample& sample)
      : queries(rows_of_outputs(problem), kUnwanted),
        keys(static_cast<std::size_t>(problem.shape.batch * problem.shape.kv_heads)) {
    const ProblemShape& shape = problem.shape;
    int place = 0;
    for (const Row& row : sample.queries) queries[row_of_outputs(problem, row)] = place++;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const int b = static_cast<int>(i) / static_cast<int>(shape.kv_heads);
      keys[i].places.assign(static_cast<std::size_t>(span_of(problem, b).kv_len), kUnwanted);
    }
    for (std::size_t i = 0; i < sample.keys.size(); ++i) {
      const KeyRow& row = sample.keys[i];
      KeysOfHead& head = keys[static_cast<std::size_t>(row.b * shape.kv_heads + row.h_kv)];
      if (head.wanted.empty()) head.first = i;
      head.places[static_cast<std::size_t>(row.kv_idx)] = static_cast<int>(head.wanted.size());
      head.wanted.push_back(row.kv_idx);
    }
  }

  struct KeysOfHead {
    std::size_t first = 0;    // of them in the sample
    std::vector<int> wanted;  // in the sample's order
    std::vector<int> places;  // by key: in `wanted`
  };
  std::vector<int> queries;      // by the row of the outputs: place in the sample
  std::vector<KeysOfHead> keys;  // by [b, h_kv]
};

// What the pass is given beside the problem.
struct Given {
  const OutputGradients& gradients;
  const HostOutput* forward;  // null: what the definition says
};

// What some rows of one (batch, kv head) add to all gradients that are asked for. dq is shared with
// other parts, which write elsewhere.
class Part {
 public:
  Part(const AttentionSpec& spec, const HostProblem& problem, const Given& given,
       const Derivatives& derivatives, const Roundings& roundings, const Selection& selection,
       std::int64_t head, Sums& dq)
      : dk(selection.keys[static_cast<std::size_t>(head)].wanted.size() *
           static_cast<std::size_t>(spec.head_dim_qk)),
        dv(selection.keys[static_cast<std::size_t>(head)].wanted.size() *
           static_cast<std::size_t>(spec.head_dim_v)),
        spec_(spec),
        problem_(problem),
        given_(given),
        derivatives_(derivatives),
        roundings_(roundings),
        queries_(selection.queries),
        keys_of_head_(selection.keys[static_cast<std::size_t>(head)]),
        dq_(dq) {
    for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot)
      tensors.emplace_back(spec.environment.tensors[slot].grad ? problem.tensors[slot].values.size()
                                                               : 0);
    if (spec.sink != nullptr)
      sink = Sums(static_cast<std::size_t>(problem.shape.batch * problem.shape.heads));
  }

  void add_row(const Row& row) {
    RowView view(spec_, problem_, row);
    point_ = view.point();
    query_row_ = row_of_outputs(problem_, row);
    query_place_ = queries_[query_row_];
    find_keys(view);
    // Of a row that is not asked for only the keys that are were looked at.
    if (keys_.empty() && query_place_ == kUnwanted) return;
    if (!(given_.forward != nullptr ? take_lse() : find_lse())) return;
    find_weights();
    given_.forward != nullptr ? take_output() : find_output(view);
    const double* d_o = &given_.gradients.d_o[query_row_ * dim_v()];
    // D, and the variance that O's roundings give it.
    double d = 0, d_variance = 0;
    for (std::size_t i = 0; i < dim_v() && !keys_.empty(); ++i) {
      const double term = d_o[i] * o_[i];
      d += term;
      d_variance += square(d_o[i]) * o_variances_[i];
      d_variance += square(kFp32Rounding * term) * static_cast<double>(dim_v());
    }
    if (!given_.gradients.d_lse.empty()) d -= given_.gradients.d_lse[query_row_];
    if (query_place_ != kUnwanted) add_sink(d, d_variance);
    means_.assign(dim_qk(), 0);
    for (const Key& key : keys_) add_key(view, key, d_o, d, d_variance);
    if (query_place_ == kUnwanted) return;
    // What is off in all of a row alike.
    for (std::size_t i = 0; i < dim_qk(); ++i) {
      const std::size_t at = static_cast<std::size_t>(query_place_) * dim_qk() + i;
      dq_.variances[at] += d_variance * square(means_[i]) + square(lse_deviation_ * dq_.values[at]);
    }
  }

  Sums dk, dv;                // of the head's keys that are asked for
  std::vector<Sums> tensors;  // by slot; empty without `grad`. Of rows that are asked for.
  Sums sink;                  // [batch, heads], of rows that are asked for; empty without one

 private:
  struct Key {
    std::int64_t index;
    double product, product_error;
    double score = 0, score_deviation = 0;
    double slope = 1, slope_deviation = 0;  // of the score in the product
    double weight = 0;                      // its probability, undropped
    double deviation = 0;                   // of that, relative
  };

  std::size_t dim_qk() const { return static_cast<std::size_t>(spec_.head_dim_qk); }
  std::size_t dim_v() const { return static_cast<std::size_t>(spec_.head_dim_v); }

  const expr::Point& at(const Key& key) {
    point_.kv_idx = static_cast<std::int32_t>(key.index);
    point_.score = key.product;
    return point_;
  }

  // A bound that is infinite, where a comparison may go either way, times nothing is nothing.
  static double deviation_of(const expr::Inexact& x) {
    return std::min(x.error, 1e100) / kAllowedDeviations;
  }

  // Variance of the rounding of P or dS to the dtype.
  double rounding_variance(double value) const {
    if (roundings_.p == 0) return 0;
    const double size = std::abs(value);
    return square(kRmsOfRounding *
                  std::max(roundings_.p * size, std::min(size, roundings_.smallest)));
  }

  // The live ones that are needed, and the largest score among them and the sink.
  void find_keys(RowView& view) {
    keys_.clear();
    sink_ = view.sink();
    maximum_ = sink_;
    if (query_place_ == kUnwanted) {
      for (const int k : keys_of_head_.wanted) add_if_live(view, k);
    } else {
      for (std::int64_t k = 0; k < view.kv_len(); ++k) add_if_live(view, k);
    }
  }

  void add_if_live(RowView& view, std::int64_t k) {
    if (!view.live(k)) return;
    const Product product = product_of(view.query(), view.key(k), spec_.head_dim_qk);
    Key key{
        .index = k,
        .product = view.scale() * product.sum,
        .product_error = kAllowedDeviations * std::abs(view.scale()) * std::sqrt(product.variance)};
    const expr::Inexact score = view.score(key.product, k, key.product_error);
    key.score = score.value;
    if (key.score == -std::numeric_limits<double>::infinity()) return;
    key.score_deviation = std::hypot(deviation_of(score), kFunctionRounding * key.score);
    if (derivatives_.score) {
      const expr::Inexact slope =
          expr::evaluate_inexact(derivatives_.score, at(key), key.product_error);
      key.slope = slope.value;
      // The functions of a slope are near 1 where it is near 0.
      key.slope_deviation =
          std::hypot(deviation_of(slope), kFunctionRounding * (1 + std::abs(key.slope)));
    }
    maximum_ = std::fmax(maximum_, key.score);
    keys_.push_back(key);
  }

  // False when there is nothing that a gradient could flow to.
  bool find_lse() {
    if (keys_.empty() && maximum_ == -std::numeric_limits<double>::infinity()) return false;
    double total = spec_.sink == nullptr ? 0 : std::exp(sink_ - maximum_);
    for (const Key& key : keys_) total += std::exp(key.score - maximum_);
    lse_ = maximum_ + std::log(total);
    return true;
  }
  bool take_lse() {
    lse_ = given_.forward->lse[query_row_];
    maximum_ = lse_;  // at least as large as any score
    return lse_ != -std::numeric_limits<double>::infinity();
  }

  void find_weights() {
    lse_deviation_ =
        (roundings_.lse * (std::abs(lse_) + std::abs(maximum_)) + roundings_.lse_smallest) /
        kAllowedDeviations;
    for (Key& key : keys_) key.weight = std::exp(key.score - lse_);
    if (given_.forward == nullptr) {
      // A forward kernel's LSE errs by what its scores do, whose functions may all err to one side.
      double of_scores = 0;
      for (const Key& key : keys_) of_scores += key.weight * key.score_deviation;
      lse_deviation_ = std::hypot(lse_deviation_, of_scores);
    }
    for (Key& key : keys_) {
      key.deviation = std::hypot(key.score_deviation, lse_deviation_,
                                 kFp32Rounding * (4 + 3 * std::abs(key.score) + std::abs(lse_)));
    }
  }

  // Of P that is rounded, and then scaled for what dropout drops.
  double weight_variance(const RowView& view, const Key& key) const {
    return square(view.keep_scale()) *
           (rounding_variance(key.weight) + square(key.weight * key.deviation));
  }

  // As the definition has it, and the variance of what a forward kernel makes of it.
  void find_output(const RowView& view) {
    o_.assign(dim_v(), 0);
    o_variances_.assign(dim_v(), 0);
    for (const Key& key : keys_) {
      if (view.is_dropped(key.index)) continue;
      const double weight = key.weight * view.keep_scale();
      const double variance = weight_variance(view, key);
      const double* value = view.value(key.index);
      for (std::size_t i = 0; i < dim_v(); ++i) {
        o_[i] += weight * value[i];
        o_variances_[i] += variance * square(value[i]);
      }
    }
    for (std::size_t i = 0; i < dim_v(); ++i)
      o_variances_[i] += square(kRmsOfRounding * roundings_.dtype * o_[i]);
  }
  void take_output() {
    const auto first =
        given_.forward->o.begin() + static_cast<std::ptrdiff_t>(query_row_ * dim_v());
    o_.assign(first, first + spec_.head_dim_v);
    o_variances_.assign(dim_v(), 0);
  }

  void add_key(RowView& view, const Key& key, const double* d_o, double d, double d_variance) {
    const int key_place = keys_of_head_.places[static_cast<std::size_t>(key.index)];
    double dp = 0, dp_variance = 0;
    if (!view.is_dropped(key.index)) {
      const Product product = product_of(d_o, view.value(key.index), spec_.head_dim_v);
      dp = view.keep_scale() * product.sum;
      dp_variance = square(view.keep_scale()) * product.variance;
      const double weight = key.weight * view.keep_scale();
      const double variance = weight_variance(view, key);
      for (std::size_t i = 0; i < dim_v() && key_place != kUnwanted; ++i) {
        dv.add(static_cast<std::size_t>(key_place) * dim_v() + i, weight * d_o[i],
               variance * square(d_o[i]));
      }
    }
    // Of the score that the softmax takes, then of the product.
    const double ds = key.weight * (dp - d);
    const double ds_variance =
        square(ds * key.deviation) +
        square(key.weight) * (dp_variance + square(kFp32Rounding) * (dp * dp + d * d));
    const double slope = key.slope;
    const double scaled = ds * slope * view.scale();
    const double variance =
        square(view.scale()) * (rounding_variance(ds * slope) + ds_variance * square(slope) +
                                square(ds * key.slope_deviation));
    const double of_d = key.weight * slope * view.scale();
    const double *query = view.query(), *keys = view.key(key.index);
    for (std::size_t i = 0; i < dim_qk() && key_place != kUnwanted; ++i) {
      dk.add(static_cast<std::size_t>(key_place) * dim_qk() + i, scaled * query[i],
             (variance + square(of_d) * d_variance) * square(query[i]));
    }
    if (query_place_ == kUnwanted) return;
    // An element may be looked up by a whole row, whose probabilities' sum is at most 1.
    add_look_ups(derivatives_.in_score, at(key), key.product_error, ds,
                 ds_variance + key.weight * d_variance);
    for (std::size_t i = 0; i < dim_qk(); ++i) {
      dq_.add(static_cast<std::size_t>(query_place_) * dim_qk() + i, scaled * keys[i],
              variance * square(keys[i]));
      means_[i] += of_d * keys[i];
    }
  }

  void add_sink(double d, double d_variance) {
    if (spec_.sink == nullptr) return;
    const double probability = std::exp(sink_ - lse_);
    // Relative, of the probability: both exponents are rounded, as those of the keys are.
    const double deviation =
        std::hypot(lse_deviation_, kFp32Rounding * (4 + 3 * std::abs(sink_) + std::abs(lse_)));
    const double variance =
        square(probability) * (d_variance + square(kFunctionRounding * d) + square(deviation * d));
    const auto head = static_cast<std::size_t>(point_.b * problem_.shape.heads + point_.h);
    sink.add(head, -probability * d, variance);
    add_look_ups(derivatives_.in_sink, point_, 0, -probability * d, variance);
  }

  void add_look_ups(const std::vector<expr::LookUpDerivative>& look_ups, const expr::Point& at,
                    double product_error, double gradient, double variance) {
    for (const expr::LookUpDerivative& look_up : look_ups) {
      const expr::Inexact partial = expr::evaluate_inexact(look_up.partial, at, product_error);
      tensors[static_cast<std::size_t>(look_up.look_up->slot)].add(
          static_cast<std::size_t>(expr::look_up_offset(look_up.look_up, at)),
          gradient * partial.value,
          square(partial.value) * (variance + square(kFunctionRounding * gradient)) +
              square(gradient * deviation_of(partial)));
    }
  }

  const AttentionSpec& spec_;
  const HostProblem& problem_;
  const Given& given_;
  const Derivatives& derivatives_;
  const Roundings& roundings_;
  const std::vector<int>& queries_;
  const Selection::KeysOfHead& keys_of_head_;
  Sums& dq_;
  // Of the row at hand.
  expr::Point point_;
  std::size_t query_row_ = 0;
  int query_place_ = kUnwanted;
  std::vector<Key> keys_;
  double sink_ = 0, maximum_ = 0, lse_ = 0, lse_deviation_ = 0;
  std::vector<double> o_, o_variances_;
  std::vector<double> means_;  // what dq changes by with -D
};

}  // namespace attune
