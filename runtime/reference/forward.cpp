#include <algorithm>
#include <limits>

#include "runtime/reference/operands.hpp"
#include "runtime/reference/oracle.hpp"
#include "runtime/reference/row_view.hpp"
#include "runtime/support/parallel.hpp"

namespace attune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Standard deviation of one fp32 rounding.
constexpr double kSumRounding = kMeanRounding * kFp32Unit;

// One row, beside each result how far a kernel's may be from it.
class ForwardRow {
 public:
  ForwardRow(const AttentionSpec& spec, const ErrorModel& model, RowView& row)
      : spec_(spec), model_(model), row_(row) {}

  // `o` and `o_limit` take head_dim_v elements, all zero.
  void run(std::int64_t kv_len, double* o, double* o_limit, double* lse, double* lse_limit) {
    find_scores(kv_len);
    *lse = -kInfinity;
    *lse_limit = 0;
    if (maximum_ == -kInfinity && !has_nan_) return;
    double largest = 0;
    for (LiveKey& key : keys_) {
      key.weight = std::exp(key.score - maximum_);
      largest = std::max(largest, key.weight);
      total_ += key.weight;
    }
    const double sink = row_.sink();
    const double sink_weight = spec_.sink == nullptr ? 0 : std::exp(sink - maximum_);
    total_ += sink_weight;
    add_score_error(sink_weight / total_, sink, 0);
    for (const LiveKey& key : keys_) add_key(key, largest / total_, o, o_limit);
    finish_o(o, o_limit);
    *lse = maximum_ + std::log(total_);
    *lse_limit = score_error_ + lost_ + kDeviations * kSumRounding * std::sqrt(count() / 3) +
                 model_.lse_unit * (std::abs(*lse) + std::abs(maximum_)) + model_.lse_smallest;
  }

 private:
  struct LiveKey {
    std::int64_t index;
    double score, error;  // no kernel's score is farther off
    double weight = 0;
  };

  double count() const { return static_cast<double>(keys_.size()); }

  void find_scores(std::int64_t kv_len) {
    const double scale = row_.scale();
    const double depth = spec_.head_dim_qk;
    maximum_ = row_.sink();
    for (std::int64_t k = 0; k < kv_len; ++k) {
      if (!row_.live(k)) continue;
      const Dot dot = dot_of(row_.query(), row_.key(k), spec_.head_dim_qk);
      // Every addition rounds a partial sum, which grows like a walk or like a line.
      const double of_sum =
          kSumRounding * std::sqrt(depth * (dot.squares / 2 + dot.sum * dot.sum / 3));
      const double of_products = kMeanRounding * model_.product_unit * std::sqrt(dot.squares);
      const double deviation = std::abs(scale) * std::hypot(of_sum, of_products);
      const expr::Inexact score = row_.score(scale * dot.sum, k, kDeviations * deviation);
      keys_.push_back({.index = k, .score = score.value, .error = score.error});
      maximum_ = std::fmax(maximum_, score.value);  // ignores NaN, which the sum keeps
      has_nan_ |= std::isnan(score.value);
    }
  }

  // Notes what the errors of a score and of its exponential do to the row; returns the
  // probability's relative standard deviation.
  double add_score_error(double probability, double score, double error) {
    if (!(probability > 0)) return 0;
    // The scale is rounded, then the exponent.
    error += kFp32Unit * (3 * std::abs(score) + std::abs(maximum_) + model_.exponent_reach);
    const double deviation = error / kDeviations;
    score_error_ += probability * error;
    score_variance_ += probability * probability * deviation * deviation;
    return deviation;
  }

  void add_key(const LiveKey& key, double largest, double* o, double* variances) {
    const double probability = key.weight / total_;
    const double of_score = probability * add_score_error(probability, key.score, key.error);
    const bool is_dropped = row_.is_dropped(key.index);
    // Where scores may climb from key to key the reference follows them by steps.
    const double smallest =
        model_.p_smallest * (row_.score_varies_by_key() ? 1 : std::min(1.0, largest));
    // A subnormal's rounding is at most all of it.
    const double of_p =
        kMeanRounding * std::max(model_.p_unit * probability, std::min(probability, smallest));
    // What is too small beside the sum is not rounded at random but lost, always to one side.
    const double lost = probability < kNegligible ? std::min(probability, kFp32Unit) : 0;
    lost_ += lost;
    const double of_sum = std::max(lost, kSumRounding * probability * std::sqrt(count() / 2));
    const double variance = is_dropped ? 0 : of_score * of_score + of_p * of_p + of_sum * of_sum;
    const double weight = is_dropped ? 0 : probability;
    const double* value = row_.value(key.index);
    for (int d = 0; d < spec_.head_dim_v; ++d) {
      o[d] += weight * value[d];
      variances[d] += variance * (value[d] * value[d]);
    }
  }

  // `limits` holds the variances of O's elements.
  void finish_o(double* o, double* limits) const {
    const double keep_scale = row_.keep_scale();
    const double common = score_variance_ + kSumRounding * kSumRounding * count() * 2 / 3;
    for (int d = 0; d < spec_.head_dim_v; ++d) {
      o[d] *= keep_scale;
      const double size = std::abs(o[d]);
      const double deviation = keep_scale * std::sqrt(limits[d]);
      const double random = kDeviations * std::hypot(deviation, size * std::sqrt(common));
      double limit = (model_.o_unit + lost_) * size + model_.o_smallest +
                     std::max(random, model_.p_unit * size);
      if (model_.p_unit > 0) {
        const double partial = std::hypot(size, deviation / (kMeanRounding * model_.p_unit));
        limit += model_.truncation * count() * partial;
      }
      limits[d] = limit;
    }
  }

  const AttentionSpec& spec_;
  const ErrorModel& model_;
  RowView& row_;
  std::vector<LiveKey> keys_;
  double maximum_ = 0, total_ = 0;
  bool has_nan_ = false;
  double score_error_ = 0, score_variance_ = 0, lost_ = 0;
};

ForwardOracle oracle_of_operands(const AttentionSpec& spec, const HostProblem& problem,
                                 const std::vector<Row>& rows, Arithmetic arithmetic) {
  const ErrorModel model = error_model(spec, arithmetic);
  const auto dim = static_cast<std::size_t>(spec.head_dim_v);
  ForwardOracle oracle{.o = {"o", dim, std::vector<double>(rows.size() * dim), {}},
                       .lse = {"lse", 1, std::vector<double>(rows.size()), {}}};
  oracle.o.limits = oracle.o.values;
  oracle.lse.limits = oracle.lse.values;
  parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    RowView row(spec, problem, rows[at]);
    ForwardRow(spec, model, row)
        .run(row.kv_len(), &oracle.o.values[at * dim], &oracle.o.limits[at * dim],
             &oracle.lse.values[at], &oracle.lse.limits[at]);
  });
  return oracle;
}

}  // namespace

ForwardOracle oracle_forward(const AttentionSpec& spec, const HostProblem& problem,
                             const std::vector<Row>& rows, Arithmetic arithmetic) {
  if (!rounds_operands(spec, arithmetic))
    return oracle_of_operands(spec, problem, rows, arithmetic);
  return oracle_of_operands(spec, with_tf32_operands(problem), rows, arithmetic);
}

ForwardOracle oracle_forward(const AttentionSpec& spec, const HostProblem& problem,
                             Arithmetic arithmetic) {
  return oracle_forward(spec, problem, all_rows(problem.shape), arithmetic);
}

Verdict compare(const HostOutput& out, const ForwardOracle& oracle) {
  Verdict o = judge(oracle.o, out.o);
  Verdict lse = judge(oracle.lse, out.lse);
  return !o.wrong.empty() || (lse.wrong.empty() && o.worst >= lse.worst) ? o : lse;
}

}  // namespace attune
