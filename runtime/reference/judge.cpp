#include "runtime/reference/judge.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace attune {
namespace {

// The error in units of what is allowed; above 1 it is wrong.
double excess(double out, double value, double limit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!std::isfinite(value) || !std::isfinite(out)) {
    const bool same = std::isnan(value) ? std::isnan(out) : out == value;
    return same ? 0 : kInfinity;
  }
  const double error = std::abs(out - value);
  return error <= limit ? (error == 0 ? 0 : error / limit) : limit > 0 ? error / limit : kInfinity;
}

}  // namespace

Verdict judge(const Expected& expected, std::span<const double> out) {
  Verdict verdict;
  if (out.size() != expected.values.size()) {
    verdict.worst = std::numeric_limits<double>::infinity();
    verdict.wrong = fmt::format("{}: {} elements instead of {}", expected.name, out.size(),
                                expected.values.size());
    return verdict;
  }
  std::size_t offenders = 0, at = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double ratio = excess(out[i], expected.values[i], expected.limits[i]);
    offenders += ratio > 1 ? 1 : 0;
    if (ratio > verdict.worst) {
      verdict.worst = ratio;
      at = i;
    }
  }
  if (offenders == 0) return verdict;
  verdict.wrong = fmt::format(
      "{}[row {}, column {}] = {:.8g}, should be {:.8g} +- {:.2g}; {} of {} elements are off",
      expected.name, at / expected.width, at % expected.width, out[at], expected.values[at],
      expected.limits[at], offenders, out.size());
  return verdict;
}

}  // namespace attune
