#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/verification/random_specs.hpp"

namespace attune::random_specs {

std::string make_hostile(const AttentionSpec& spec, HostProblem& problem, std::mt19937_64& random) {
  const auto below = [&](std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random);
  };
  constexpr double kInts[] = {0, 1, -1, -7, 2147483647, -2147483648.0, 100000};
  constexpr double kFloats[] = {0, -2.5, 0x1p-40, 0.5};
  for (std::size_t slot = 0; slot < problem.scalars.size(); ++slot) {
    const expr::ScalarDecl& scalar = spec.environment.scalars[slot];
    if (scalar.is_constant || below(2) == 0) continue;
    problem.scalars[slot] = scalar.type == expr::Type::kInt32 ? kInts[below(7)] : kFloats[below(4)];
  }
  const double scale =
      spec.softmax_scale.at_launch ? problem.softmax_scale : spec.softmax_scale.value;
  const auto dim = static_cast<std::size_t>(spec.head_dim_qk);
  const auto rows_of = [&](std::vector<double>& matrix, const auto& change) {
    for (std::size_t row = 0; row * dim < matrix.size(); ++row) {
      if (!std::isnan(matrix[row * dim])) change(row, &matrix[row * dim]);
    }
  };
  const auto rounded = [&](double value) { return round_to(spec.dtype, value); };
  const bool keys_stay = spec.kv_dtype.has_value() || spec.v_in_k;  // quantised, or V too
  switch (below(keys_stay ? 8 : 14)) {
    case 0: {
      const double factor = std::vector{4.0, 12.0, 40.0}[static_cast<std::size_t>(below(3))];
      for (double& value : problem.q) value = rounded(value * factor);
      return fmt::format("q * {}", factor);
    }
    case 1: {
      const auto period = static_cast<std::size_t>(2 + below(90));
      rows_of(problem.q, [&](std::size_t row, double* q) {
        if (row % period != 1) return;
        for (std::size_t i = 0; i < dim; ++i) q[i] = rounded(60 * q[i]);
      });
      return fmt::format("a row in {} * 60", period);
    }
    case 2:
      rows_of(problem.q, [&](std::size_t row, double* q) {
        if (row / 20 % 2 == 0) std::fill_n(q, dim, 0.0);
      });
      return "rows of zeros";
    case 8:
    case 9: {
      rows_of(problem.k, [](std::size_t, double* k) { k[0] = 1; });
      const auto period = static_cast<std::size_t>(1 + below(5));
      const double by = std::vector{80.0, -80.0, 300.0}[static_cast<std::size_t>(below(3))];
      rows_of(problem.q, [&](std::size_t row, double* q) {
        q[0] = row % period == 0 ? rounded(by / scale) : 0;
      });
      return fmt::format("a row in {} shifted by {}", period, by);
    }
    case 10: {
      const auto hot = static_cast<std::size_t>(below(500));
      rows_of(problem.k, [&](std::size_t row, double* k) { k[1] = row % 500 == hot ? 1 : 0; });
      rows_of(problem.q, [&](std::size_t, double* q) { q[1] = rounded(100 / scale); });
      return fmt::format("key {} of 500 hot", hot);
    }
    case 11: {
      const auto stretch = [&](std::vector<double>& matrix) {
        std::uniform_real_distribution<double> uniform(1e-6, 1);
        for (double& value : matrix)
          value = rounded(std::clamp(value / std::sqrt(uniform(random)), -1e3, 1e3));
      };
      stretch(problem.q);
      stretch(problem.k);
      return "heavy tails";
    }
    case 12: {
      const double rise = below(2) == 0 ? 7 : 1;
      const auto step = static_cast<std::size_t>(8 + below(60));
      const bool falls = below(2) == 0;
      rows_of(problem.k, [&](std::size_t row, double* k) {
        k[2] = rounded(static_cast<double>(row / step % 40) * (falls ? -1 : 1));
      });
      rows_of(problem.q, [&](std::size_t row, double* q) {
        q[2] = row % 5 == 0 ? 0 : rounded((row % 7 == 0 ? -rise : rise) / scale);
      });
      return fmt::format("steps of {} every {} keys, {}", rise, step, falls ? "down" : "up");
    }
    default:
      return "nothing";
  }
}

}  // namespace attune::random_specs
