#include "cli/chart_axis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attune::cli {
namespace {

constexpr std::size_t kFewest = 3;
constexpr std::size_t kMost = 12;

// Those factors of powers of ten that lie on the axis.
std::vector<double> multiples(const Axis& axis, const std::vector<double>& factors) {
  std::vector<double> found;
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
       power *= 10) {
    for (const double factor : factors) {
      const double value = power * factor;
      if (value >= axis.low && value <= axis.high) found.push_back(value);
    }
  }
  return found;
}

// Even steps of 1, 2 or 5 times a power of ten, of which kFewest fit.
std::vector<double> even_steps(const Axis& axis) {
  const double widest = (axis.high - axis.low) / static_cast<double>(kFewest + 1);
  const double power = std::pow(10, std::floor(std::log10(widest)));
  const double step = power * (widest >= 5 * power ? 5 : widest >= 2 * power ? 2 : 1);
  std::vector<double> found;
  for (double count = std::ceil(axis.low / step); count * step <= axis.high; ++count)
    found.push_back(count * step);
  return found;
}

}  // namespace

double Axis::at(double value) const {
  return from + (to - from) * (std::log(value / low) / std::log(high / low));
}

Axis axis_over(const std::vector<double>& values, double from, double to) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const double value : values) {
    if (value <= 0 || !std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (high <= 0) low = high = 1;
  return {low / 1.15, high * 1.15, from, to};
}

std::vector<double> ticks(const Axis& axis) {
  std::vector<double> decades = multiples(axis, {1});
  if (decades.size() >= kFewest) {
    const std::size_t every = (decades.size() + kMost - 1) / kMost;
    std::vector<double> kept;
    for (std::size_t i = 0; i < decades.size(); i += every) kept.push_back(decades[i]);
    return kept;
  }
  for (const std::vector<double>& factors :
       {std::vector{1.0, 2.0, 5.0}, std::vector{1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0}}) {
    std::vector<double> found = multiples(axis, factors);
    if (found.size() >= kFewest) return found;
  }
  return even_steps(axis);
}

}  // namespace attune::cli
