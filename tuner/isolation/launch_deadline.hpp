// How long to wait for launches of one problem: long enough for what they should take.
#pragma once

#include <algorithm>
#include <chrono>

namespace attune {

class LaunchDeadline {
 public:
  // `least` is granted to every request, whatever it launches.
  explicit LaunchDeadline(std::chrono::milliseconds least) : least_(least) {}

  // For `launches`, of which each is expected to take so many microseconds (0: not known).
  std::chrono::milliseconds of(double expected_us, int launches) const;
  // What a launch took. Others of the problem may take as long, whatever is expected of them.
  void note(double measured_us) { longest_us_ = std::max(longest_us_, measured_us); }

 private:
  std::chrono::milliseconds least_;
  double longest_us_ = 0;
};

}  // namespace attune
