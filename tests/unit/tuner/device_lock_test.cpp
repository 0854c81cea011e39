#include "tuner/measure/device_lock.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/tuner/lock_holder.hpp"

namespace attune {
namespace {

const auto kGiveUp = [] { return false; };

// Not another test's, nor another run's of this one.
std::string unit_of_this_test() {
  return fmt::format("GPU-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(),
                     getpid());
}

TEST(DeviceLock, IsHeldByOneAndGivenBack) {
  const std::string unit = unit_of_this_test();
  {
    const auto first = DeviceLock::acquire(unit, kGiveUp);
    ASSERT_TRUE(first.ok());
    const auto second = DeviceLock::acquire(unit, kGiveUp);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().id, "device-busy");
    EXPECT_TRUE(DeviceLock::acquire(unit + "-other", kGiveUp).ok()) << "another GPU, another lock";
  }
  EXPECT_TRUE(DeviceLock::acquire(unit, kGiveUp).ok());
}

TEST(DeviceLock, IsFreeOnceItsProcessWasKilled) {
  const std::string unit = unit_of_this_test();
  tuner_testing::LockHolder other([&] { return DeviceLock::acquire(unit, kGiveUp); });
  ASSERT_TRUE(other.holds());
  EXPECT_FALSE(DeviceLock::acquire(unit, kGiveUp).ok()) << "another process holds it";
  other.kill();
  EXPECT_TRUE(DeviceLock::acquire(unit, kGiveUp).ok());
}

TEST(DeviceLock, WaitsUntilItIsFree) {
  const std::string unit = unit_of_this_test();
  auto first = std::make_unique<DeviceLock>(DeviceLock::acquire(unit, kGiveUp).value());
  int asked = 0;
  const auto second = DeviceLock::acquire(unit, [&] {
    if (++asked == 2) first.reset();
    return asked < 10;
  });
  EXPECT_TRUE(second.ok());
  EXPECT_EQ(asked, 2);
}

TEST(DeviceLock, NothingToLockIsGranted) {
  const auto first = DeviceLock::acquire("", kGiveUp);
  EXPECT_TRUE(DeviceLock::acquire("", kGiveUp).ok());
}

}  // namespace
}  // namespace attune
