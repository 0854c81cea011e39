#include "runtime/support/undisturbed_rate.hpp"

#include <gtest/gtest.h>

namespace attune {
namespace {

TEST(UndisturbedRate, IsNotWhatOtherProcessesLeaveOfIt) {
  std::vector<double> seconds(48, 2e-3);
  EXPECT_DOUBLE_EQ(undisturbed_rate(seconds), 500);
  // Two parts in three took longer, and two ran while the rest of the core was idle.
  for (std::size_t i = 0; i < 32; ++i) seconds[i] = 3e-3 + 1e-3 * static_cast<double>(i);
  seconds[40] = seconds[41] = 1e-3;
  EXPECT_DOUBLE_EQ(undisturbed_rate(seconds), 500);
}

TEST(UndisturbedRate, OfNothingIsNone) { EXPECT_EQ(undisturbed_rate({}), 0); }

}  // namespace
}  // namespace attune
