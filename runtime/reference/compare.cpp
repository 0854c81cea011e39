#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

using Tolerance = std::function<double(double oracle)>;

bool same_kind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

double worst_error(const std::vector<double>& plain, const std::vector<double>& oracle) {
  double worst = 0;
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double error = std::abs(plain[i] - oracle[i]);
    if (std::isfinite(error)) worst = std::max(worst, error);
  }
  return worst;
}

// `width`: elements a row, so that the message can name row and column.
std::string compare_values(const char* name, const std::vector<double>& out,
                           const std::vector<double>& oracle, const std::vector<double>& plain,
                           std::size_t width, const Tolerance& atol) {
  if (out.size() != oracle.size()) {
    return fmt::format("{}: {} elements instead of {}", name, out.size(), oracle.size());
  }
  const double yardstick = 2 * worst_error(plain, oracle);
  std::size_t offenders = 0;
  std::string first;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(out[i] - oracle[i]);
    const bool finite = std::isfinite(oracle[i]);
    const double limit = finite ? yardstick + atol(oracle[i]) : 0;
    if (same_kind(out[i], oracle[i]) && (!finite || error <= limit)) continue;
    if (offenders++ == 0) {
      first = fmt::format("{}[row {}, column {}] = {:.6g}, should be {:.6g} +- {:.2g}", name,
                          i / width, i % width, out[i], oracle[i], limit);
    }
  }
  if (offenders == 0) return {};
  return fmt::format("{}; {} of {} elements are off", first, offenders, out.size());
}

double o_atol(DType dtype, const std::vector<double>& oracle) {
  double worst = 0;
  for (const double o : oracle) {
    if (!std::isfinite(o)) continue;
    const double there = round_to(dtype, round_to(dtype, o) + 0.3);
    worst = std::max(worst, std::abs(round_to(dtype, there - 0.3) - round_to(dtype, o)));
  }
  return 2 * worst;
}

}  // namespace

std::string compare(DType dtype, const HostOutput& out, const HostOutput& oracle,
                    const HostOutput& plain) {
  const std::size_t width = oracle.lse.empty() ? 1 : oracle.o.size() / oracle.lse.size();
  const double atol = o_atol(dtype, oracle.o);
  std::string wrong =
      compare_values("o", out.o, oracle.o, plain.o, width, [&](double) { return atol; });
  if (!wrong.empty()) return wrong;
  return compare_values("lse", out.lse, oracle.lse, plain.lse, 1,
                        [](double lse) { return 1e-5 * std::max(1.0, std::abs(lse)); });
}

}  // namespace attune
