#include "runtime/reference/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "generator/expr/build.hpp"
#include "generator/expr/derivative.hpp"
#include "runtime/reference/row_view.hpp"
#include "runtime/support/parallel.hpp"

namespace attune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kAllowedDeviations = 8;
// The largest relative rounding of fp32; the root of the mean square of a rounding relative to the
// largest.
constexpr double kLargestFp32Rounding = 0x1p-24, kRmsOfRounding = 0.425;
// Standard deviation of one fp32 rounding; of a special-function unit's result.
constexpr double kFp32Rounding = kRmsOfRounding * kLargestFp32Rounding;
constexpr double kFunctionRounding = 4 * kFp32Rounding;

double square(double x) { return x * x; }

// Largest relative errors; absolute where it says so.
struct Roundings {
  double dtype, smallest;    // of a value in the dtype; absolute, of a subnormal one
  double p;                  // of P and dS; 0 where they stay in fp32
  double truncation;         // of a matrix unit's sum, a term
  double lse, lse_smallest;  // of LSE and the scores' maximum; absolute
};
Roundings roundings(DType dtype, bool rounds_p) {
  Roundings r = {.dtype = kLargestFp32Rounding,
                 .smallest = 0x1p-126,
                 .p = 0,
                 .truncation = 0,
                 .lse = 0x1p-22,
                 .lse_smallest = 0x1p-22};
  if (dtype == DType::kF16) r.dtype = 0x1p-11, r.smallest = 0x1p-25;
  if (dtype == DType::kBf16) r.dtype = 0x1p-8;
  if (dtype == DType::kFp8E4m3) r.dtype = 0x1p-4, r.smallest = 0x1p-10;
  if (!rounds_p) return r;
  if (dtype != DType::kF32) r.p = r.dtype;
  r.truncation = kLargestFp32Rounding / 16;  // a step is 16 terms
  // lg2.approx errs by 2^-22, of a sum that a reference may put 40 binary orders below 1.
  r.lse_smallest = 40 * 0x1p-22;
  return r;
}

// A dot product, and the variance that fp32 additions give it, which round partial sums that grow
// like a walk or like a line.
struct Product {
  double sum = 0, variance = 0;
};
Product product_of(const double* a, const double* b, int count) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) {
    sum += a[i] * b[i];
    squares += square(a[i] * b[i]);
  }
  return {sum, square(kFp32Rounding) * count * (squares / 2 + square(sum) / 3)};
}

// Elements that are sums, and the variance of what their terms may be off by.
struct Sums {
  explicit Sums(std::size_t size = 0)
      : values(size), variances(size), squares(size), counts(size) {}
  void add(std::size_t at, double term, double variance) {
    values[at] += term;
    variances[at] += variance;
    squares[at] += term * term;
    counts[at] += 1;
  }
  void add(const Sums& other) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += other.values[i];
      variances[i] += other.variances[i];
      squares[i] += other.squares[i];
      counts[i] += other.counts[i];
    }
  }
  std::vector<double> values, variances, squares, counts;
};

// `unit`, `smallest`: of the element's own rounding.
ExpectedGradient finished(Sums&& sums, double truncation, double unit, double smallest) {
  ExpectedGradient expected{.values = std::move(sums.values), .limits = {}};
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double size = std::abs(expected.values[i]), count = sums.counts[i];
    const double of_sum = square(kFp32Rounding) * count * (sums.squares[i] / 2 + square(size) / 3);
    expected.limits.push_back(unit * size + smallest +
                              kAllowedDeviations * std::sqrt(sums.variances[i] + of_sum) +
                              truncation * count * std::hypot(size, std::sqrt(sums.squares[i])));
  }
  return expected;
}

struct Derivatives {
  expr::Expr score;  // null: 1
  std::vector<expr::LookUpDerivative> in_score, in_sink;
};

// All gradients that one (batch, kv head) has a part in. dq, dk and dv are shared with others,
// which write elsewhere.
class Group {
 public:
  Group(const AttentionSpec& spec, const HostProblem& problem, const OutputGradients& gradients,
        const Derivatives& derivatives, const Roundings& roundings, Sums& dq, Sums& dk, Sums& dv)
      : spec_(spec),
        problem_(problem),
        gradients_(gradients),
        derivatives_(derivatives),
        roundings_(roundings),
        dq_(dq),
        dk_(dk),
        dv_(dv) {
    for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot)
      tensors.emplace_back(spec.environment.tensors[slot].grad ? problem.tensors[slot].values.size()
                                                               : 0);
  }

  void add_row(const Row& row) {
    RowView view(spec_, problem_, row);
    const ProblemShape& s = problem_.shape;
    point_ = {.b = row.b,
              .h = row.h,
              .h_kv = static_cast<std::int32_t>(row.h / (s.heads / s.kv_heads)),
              .q_idx = row.q_idx,
              .q_len = static_cast<std::int32_t>(s.q_len),
              .kv_len = static_cast<std::int32_t>(s.kv_len),
              .scalars = problem_.scalars,
              .tensors = problem_.tensors};
    if (!find_keys(view)) return;
    find_output(view);
    const auto query_row =
        static_cast<std::size_t>((row.b * s.heads + row.h) * s.q_len + row.q_idx);
    const double* d_o = &gradients_.d_o[query_row * dim_v()];
    // D, and the variance that O's roundings give it.
    double d = 0, d_variance = 0;
    for (std::size_t i = 0; i < dim_v() && !keys_.empty(); ++i) {
      const double term = d_o[i] * o_[i];
      d += term;
      d_variance +=
          square(d_o[i]) * (o_variances_[i] + square(kRmsOfRounding * roundings_.dtype * o_[i]));
      d_variance += square(kFp32Rounding * term) * static_cast<double>(dim_v());
    }
    if (!gradients_.d_lse.empty()) d -= gradients_.d_lse[query_row];
    add_sink(d, d_variance);
    means_.assign(dim_qk(), 0);
    for (const Key& key : keys_) add_key(view, row, key, query_row, d_o, d, d_variance);
    // What is off in all of a row alike.
    for (std::size_t i = 0; i < dim_qk(); ++i) {
      const std::size_t at = query_row * dim_qk() + i;
      dq_.variances[at] += d_variance * square(means_[i]) + square(lse_deviation_ * dq_.values[at]);
    }
  }

  std::vector<Sums> tensors;  // by slot; empty without `grad`

 private:
  struct Key {
    std::int64_t index;
    double product, score, score_deviation;
    double slope = 1;      // of the score in the product
    double weight = 0;     // its probability, undropped
    double deviation = 0;  // of that, relative
  };

  std::size_t dim_qk() const { return static_cast<std::size_t>(spec_.head_dim_qk); }
  std::size_t dim_v() const { return static_cast<std::size_t>(spec_.head_dim_v); }

  const expr::Point& at(const Key& key) {
    point_.kv_idx = static_cast<std::int32_t>(key.index);
    point_.score = key.product;
    return point_;
  }

  // Variance of the rounding of P or dS to the dtype.
  double rounding_variance(double value) const {
    if (roundings_.p == 0) return 0;
    const double size = std::abs(value);
    return square(kRmsOfRounding *
                  std::max(roundings_.p * size, std::min(size, roundings_.smallest)));
  }

  // False when there is nothing that a gradient could flow to.
  bool find_keys(RowView& view) {
    keys_.clear();
    sink_ = view.sink();
    double maximum = sink_;
    for (std::int64_t k = 0; k < problem_.shape.kv_len; ++k) {
      if (!view.live(k)) continue;
      const Product product = product_of(view.query(), view.key(k), spec_.head_dim_qk);
      Key key{.index = k, .product = view.scale() * product.sum, .score = 0, .score_deviation = 0};
      const expr::Point& point = at(key);
      key.score = spec_.score ? expr::evaluate(spec_.score, point) : key.product;
      if (key.score == -kInfinity) continue;
      if (derivatives_.score) key.slope = expr::evaluate(derivatives_.score, point);
      key.score_deviation = std::hypot(key.slope * view.scale() * std::sqrt(product.variance),
                                       kFunctionRounding * key.score);
      maximum = std::fmax(maximum, key.score);
      keys_.push_back(key);
    }
    if (keys_.empty() && maximum == -kInfinity) return false;
    double total = spec_.sink == nullptr ? 0 : std::exp(sink_ - maximum);
    for (const Key& key : keys_) total += std::exp(key.score - maximum);
    lse_ = maximum + std::log(total);
    lse_deviation_ =
        (roundings_.lse * (std::abs(lse_) + std::abs(maximum)) + roundings_.lse_smallest) /
        kAllowedDeviations;
    for (Key& key : keys_) {
      key.weight = std::exp(key.score - lse_);
      key.deviation = std::hypot(key.score_deviation, lse_deviation_,
                                 kFp32Rounding * (4 + 3 * std::abs(key.score) + std::abs(lse_)));
    }
    return true;
  }

  void find_output(const RowView& view) {
    o_.assign(dim_v(), 0);
    o_variances_.assign(dim_v(), 0);
    for (const Key& key : keys_) {
      if (view.is_dropped(key.index)) continue;
      const double weight = key.weight * view.keep_scale();
      const double variance = rounding_variance(weight) + square(weight * key.deviation);
      const double* value = view.value(key.index);
      for (std::size_t i = 0; i < dim_v(); ++i) {
        o_[i] += weight * value[i];
        o_variances_[i] += variance * square(value[i]);
      }
    }
  }

  void add_key(RowView& view, const Row& row, const Key& key, std::size_t query_row,
               const double* d_o, double d, double d_variance) {
    const ProblemShape& s = problem_.shape;
    const auto kv_head = row.h / (s.heads / s.kv_heads);
    const auto key_row =
        static_cast<std::size_t>((row.b * s.kv_heads + kv_head) * s.kv_len + key.index);
    double dp = 0, dp_variance = 0;
    if (!view.is_dropped(key.index)) {
      const Product product = product_of(d_o, view.value(key.index), spec_.head_dim_v);
      dp = view.keep_scale() * product.sum;
      dp_variance = square(view.keep_scale()) * product.variance;
      const double weight = key.weight * view.keep_scale();
      const double variance = rounding_variance(weight) + square(weight * key.deviation);
      for (std::size_t i = 0; i < dim_v(); ++i)
        dv_.add(key_row * dim_v() + i, weight * d_o[i], variance * square(d_o[i]));
    }
    // Of the score that the softmax takes, then of the product.
    const double ds = key.weight * (dp - d);
    const double ds_variance =
        square(ds * key.deviation) +
        square(key.weight) * (dp_variance + square(kFp32Rounding) * (dp * dp + d * d));
    // An element may be looked up by a whole row, whose probabilities' sum is at most 1.
    add_look_ups(derivatives_.in_score, at(key), ds, ds_variance + key.weight * d_variance);
    const double slope = key.slope;
    // The functions of a slope are near 1 where it is near 0.
    const double slope_error = derivatives_.score ? kFunctionRounding * (1 + std::abs(slope)) : 0;
    const double scaled = ds * slope * view.scale();
    const double variance =
        square(view.scale()) *
        (rounding_variance(ds * slope) + ds_variance * square(slope) + square(ds * slope_error));
    const double of_d = key.weight * slope * view.scale();
    const double *query = view.query(), *keys = view.key(key.index);
    for (std::size_t i = 0; i < dim_qk(); ++i) {
      dq_.add(query_row * dim_qk() + i, scaled * keys[i], variance * square(keys[i]));
      means_[i] += of_d * keys[i];
      dk_.add(key_row * dim_qk() + i, scaled * query[i],
              (variance + square(of_d) * d_variance) * square(query[i]));
    }
  }

  void add_sink(double d, double d_variance) {
    if (spec_.sink == nullptr) return;
    const double probability = std::exp(sink_ - lse_);
    const double variance = square(probability) * (d_variance + square(kFunctionRounding * d));
    add_look_ups(derivatives_.in_sink, point_, -probability * d, variance);
  }

  void add_look_ups(const std::vector<expr::LookUpDerivative>& look_ups, const expr::Point& at,
                    double gradient, double variance) {
    for (const expr::LookUpDerivative& look_up : look_ups) {
      const double partial = expr::evaluate(look_up.partial, at);
      tensors[static_cast<std::size_t>(look_up.look_up->slot)].add(
          static_cast<std::size_t>(expr::look_up_offset(look_up.look_up, at)), gradient * partial,
          square(partial) * (variance + square(kFunctionRounding * gradient)));
    }
  }

  const AttentionSpec& spec_;
  const HostProblem& problem_;
  const OutputGradients& gradients_;
  const Derivatives& derivatives_;
  const Roundings& roundings_;
  Sums &dq_, &dk_, &dv_;
  // Of the row at hand.
  expr::Point point_;
  std::vector<Key> keys_;
  double sink_ = 0, lse_ = 0, lse_deviation_ = 0;
  std::vector<double> o_, o_variances_;
  std::vector<double> means_;  // what dq changes by with -D
};

}  // namespace

OutputGradients random_output_gradients(const AttentionSpec& spec, const ProblemShape& shape,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto rows = static_cast<std::size_t>(shape.batch * shape.heads * shape.q_len);
  OutputGradients gradients;
  gradients.d_o.resize(rows * static_cast<std::size_t>(spec.head_dim_v));
  gradients.d_lse.resize(rows);
  for (double& value : gradients.d_o) value = round_to(spec.dtype, normal(random));
  for (double& value : gradients.d_lse) value = round_to(DType::kF32, normal(random));
  return gradients;
}

BackwardOracle oracle_backward(const AttentionSpec& spec, const HostProblem& problem,
                               const OutputGradients& gradients, bool rounds_p) {
  const Roundings allowed = roundings(spec.dtype, rounds_p);
  Derivatives derivatives;
  if (spec.score) {
    derivatives.score = expr::derivative(spec.score, expr::make_variable(expr::Variable::kScore));
    derivatives.in_score = expr::look_up_derivatives(spec.score, spec.environment);
  }
  derivatives.in_sink = expr::look_up_derivatives(spec.sink, spec.environment);
  const ProblemShape& s = problem.shape;
  Sums dq(problem.q.size()), dk(problem.k.size()), dv(problem.v.size());
  std::vector<Group> groups(static_cast<std::size_t>(s.batch * s.kv_heads),
                            Group(spec, problem, gradients, derivatives, allowed, dq, dk, dv));
  parallel_for(s.batch * s.kv_heads, [&](std::int64_t i) {
    const std::int64_t in_group = s.heads / s.kv_heads;
    for (std::int64_t row = 0; row < in_group * s.q_len; ++row) {
      groups[static_cast<std::size_t>(i)].add_row(
          {.b = static_cast<int>(i / s.kv_heads),
           .h = static_cast<int>(i % s.kv_heads * in_group + row / s.q_len),
           .q_idx = static_cast<int>(row % s.q_len)});
    }
  });
  const auto in_dtype = [&](Sums& sums) {  // scaled in fp32, then rounded
    return finished(std::move(sums), allowed.truncation, allowed.dtype + 4 * kLargestFp32Rounding,
                    allowed.smallest);
  };
  BackwardOracle oracle{.dq = in_dtype(dq), .dk = in_dtype(dk), .dv = in_dtype(dv), .tensors = {}};
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    Sums sums(groups.front().tensors[slot].values.size());
    for (const Group& group : groups) sums.add(group.tensors[slot]);
    oracle.tensors.push_back(
        finished(std::move(sums), 0, kLargestFp32Rounding, std::numeric_limits<float>::min()));
  }
  return oracle;
}

}  // namespace attune
