#include "tuner/isolation/launch_deadline.hpp"

#include <cstdint>

namespace attune {
namespace {

// A candidate may take so many times as long: cost models err, and other processes run.
constexpr double kPatience = 10;
// poll() takes no more.
constexpr double kLongestMs = 0x7fffffff;

}  // namespace

std::chrono::milliseconds LaunchDeadline::of(double expected_us, int launches) const {
  const double launch_ms = kPatience * std::max(expected_us, longest_us_) / 1e3;
  const double all_ms = static_cast<double>(least_.count()) + launches * launch_ms;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(all_ms, kLongestMs)));
}

}  // namespace attune
