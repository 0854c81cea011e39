#include "runtime/support/undisturbed_rate.hpp"

#include <algorithm>
#include <cstddef>

namespace attune {

double undisturbed_rate(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  const auto quartile = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4);
  std::nth_element(seconds.begin(), quartile, seconds.end());
  return 1 / *quartile;
}

}  // namespace attune
