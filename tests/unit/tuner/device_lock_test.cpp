#include "tuner/measure/device_lock.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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
  int held[2];
  ASSERT_EQ(pipe(held), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = DeviceLock::acquire(unit, kGiveUp);
    const char got = lock.ok() ? 'y' : 'n';
    if (write(held[1], &got, 1) == 1) pause();
    _exit(1);
  }
  char got = 0;
  ASSERT_EQ(read(held[0], &got, 1), 1);
  EXPECT_EQ(got, 'y');
  EXPECT_FALSE(DeviceLock::acquire(unit, kGiveUp).ok()) << "another process holds it";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(DeviceLock::acquire(unit, kGiveUp).ok());
  close(held[0]);
  close(held[1]);
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
