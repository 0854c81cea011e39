// Order statistics of a few samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace attune {

struct Spread {
  double lower_quartile = 0, median = 0, upper_quartile = 0;
  double interquartile() const { return upper_quartile - lower_quartile; }
};

// Quantiles by linear interpolation between order statistics (Hyndman and Fan's type 7). Needs a
// sample.
inline Spread spread_of(std::vector<double> samples) {
  std::ranges::sort(samples);
  const auto quantile = [&](double q) {
    const double position = q * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, samples.size() - 1);
    return std::lerp(samples[below], samples[above], position - static_cast<double>(below));
  };
  return {quantile(0.25), quantile(0.5), quantile(0.75)};
}

}  // namespace attune
