// The definition and its plain computation are one function of the arithmetic they are done in, so
// that they can differ in nothing else.
#include <algorithm>
#include <limits>

#include "runtime/reference/oracle.hpp"
#include "runtime/reference/row_view.hpp"
#include "runtime/support/parallel.hpp"

namespace attune {
namespace {

// Keeps every value as it is.
struct Exact {
  double operator()(double value) const { return value; }
};
// Rounds to the dtype.
struct Rounded {
  DType dtype;
  double operator()(double value) const { return round_to(dtype, value); }
};

// Terms of the softmax's sum that are added up one after the other; reductions of libraries keep
// many sums and add those, so theirs are no longer.
constexpr std::size_t kSumBlock = 256;

// One row with accumulations in T; `round` is applied to P and O.
template <typename T, typename Round>
void forward_row(const AttentionSpec& spec, RowView& row, std::int64_t kv_len, const Round& round,
                 double* o, double* lse) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct LiveKey {
    std::int64_t index;
    T score;
  };
  std::vector<LiveKey> keys;
  const double scale = row.scale();
  const T sink = static_cast<T>(row.sink());
  T maximum = sink;
  for (std::int64_t k = 0; k < kv_len; ++k) {
    if (!row.live(k)) continue;
    const T product = dot(row.query(), row.key(k), spec.head_dim_qk, T{});
    const T score = static_cast<T>(row.score(static_cast<T>(scale) * product, k));
    keys.push_back({k, score});
    maximum = std::fmax(maximum, score);  // ignores NaN, which the sum keeps
  }
  const auto dim = static_cast<std::size_t>(spec.head_dim_v);
  std::vector<T> sums(dim);
  *lse = -kInfinity;
  T total = 0;
  bool has_nan = false;
  for (const LiveKey& key : keys) has_nan |= std::isnan(key.score);
  if (maximum != -std::numeric_limits<T>::infinity() || has_nan) {
    for (std::size_t first = 0; first < keys.size(); first += kSumBlock) {
      const std::size_t end = std::min(keys.size(), first + kSumBlock);
      T part = 0;
      for (std::size_t i = first; i < end; ++i) part += std::exp(keys[i].score - maximum);
      total += part;
    }
    if (spec.sink != nullptr) total += std::exp(sink - maximum);
    for (const LiveKey& key : keys) {
      const double probability = std::exp(key.score - maximum) / total;
      const double weight = row.is_dropped(key.index) ? 0 : static_cast<T>(round(probability));
      const double* value = row.value(key.index);
      for (std::size_t d = 0; d < dim; ++d) sums[d] = fused(weight, value[d], sums[d]);
    }
    *lse = static_cast<double>(maximum + std::log(total));
  }
  for (int d = 0; d < spec.head_dim_v; ++d) {
    const T sum = sums[static_cast<std::size_t>(d)];
    o[d] = round(sum * static_cast<T>(row.keep_scale()));
  }
}

template <typename T, typename Round>
HostOutput forward(const AttentionSpec& spec, const HostProblem& problem,
                   const std::vector<Row>& rows, const Round& round) {
  const auto dim = static_cast<std::size_t>(spec.head_dim_v);
  HostOutput out;
  out.o.resize(rows.size() * dim);
  out.lse.resize(rows.size());
  parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    RowView row(spec, problem, rows[at]);
    forward_row<T>(spec, row, problem.shape.kv_len, round, &out.o[at * dim], &out.lse[at]);
  });
  return out;
}

}  // namespace

HostOutput oracle_forward(const AttentionSpec& spec, const HostProblem& problem,
                          const std::vector<Row>& rows) {
  return forward<double>(spec, problem, rows, Exact{});
}
HostOutput oracle_forward(const AttentionSpec& spec, const HostProblem& problem) {
  return oracle_forward(spec, problem, all_rows(problem.shape));
}

HostOutput plain_forward(const AttentionSpec& spec, const HostProblem& problem,
                         const std::vector<Row>& rows) {
  return forward<float>(spec, problem, rows, Rounded{spec.dtype});
}
HostOutput plain_forward(const AttentionSpec& spec, const HostProblem& problem) {
  return plain_forward(spec, problem, all_rows(problem.shape));
}

}  // namespace attune
