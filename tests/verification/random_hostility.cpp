#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/verification/random_specs.hpp"

namespace attune::random_specs {
namespace {

bool reads(const expr::Expr& e, int slot) {
  return e &&
         ((e->op == expr::Op::kLoad && e->slot == slot) ||
          std::ranges::any_of(e->args, [&](const expr::Expr& arg) { return reads(arg, slot); }));
}

// Numbers that a mask may look up: of any size, the same again and again, in runs and in none.
double odd_int(std::uint64_t kind, std::size_t at, std::size_t period, std::mt19937_64& random) {
  constexpr double kLeast = -2147483648.0, kMost = 2147483647;
  const std::size_t run = at / period;
  switch (kind) {
    case 0:
      return kMost;
    case 1:
      return run % 2 == 0 ? kLeast : kMost;
    case 2:
      return static_cast<double>(run % 3);
    case 3:
      return static_cast<double>(run * 7919 % 4001);  // once each, in no order
    case 4:
      return -static_cast<double>(run);
    case 5:
      return at % period == 1 ? -1 : static_cast<double>(run);
    default:
      return static_cast<double>(static_cast<std::int32_t>(random()));
  }
}

// Bf16 and fp16 have each.
double odd_float(std::uint64_t kind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kFloats[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity,
                                -0.0, 65280};
  return kFloats[kind % std::size(kFloats)];
}

// What masks alone look up, now and then; says of which slots.
std::string make_tensors_hostile(const AttentionSpec& spec, HostProblem& problem,
                                 std::mt19937_64& random) {
  std::string changed;
  for (std::size_t slot = 0; slot < problem.tensors.size(); ++slot) {
    const expr::TensorDecl& tensor = spec.environment.tensors[slot];
    const auto is_read = [&](const expr::Expr& e) { return reads(e, static_cast<int>(slot)); };
    if (tensor.type == expr::TensorType::kBool || random() % 2 == 0) continue;
    const bool is_int = tensor.type == expr::TensorType::kInt32;
    if (!is_int && (is_read(spec.score) || is_read(spec.sink))) continue;
    const std::size_t period = 2 + random() % 150;
    const std::uint64_t kind = random() % 7;
    std::vector<double>& values = problem.tensors[slot].values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (is_int) values[i] = odd_int(kind, i, period, random);
      if (!is_int && i % period == 1) values[i] = odd_float(random());
    }
    changed += fmt::format(", {} odd ({})", tensor.name, kind);
  }
  return changed;
}

std::string make_matrices_hostile(const AttentionSpec& spec, HostProblem& problem,
                                  std::mt19937_64& random) {
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

}  // namespace

std::string make_hostile(const AttentionSpec& spec, HostProblem& problem, std::mt19937_64& random) {
  const std::string matrices = make_matrices_hostile(spec, problem, random);
  return matrices + make_tensors_hostile(spec, problem, random);
}

}  // namespace attune::random_specs
