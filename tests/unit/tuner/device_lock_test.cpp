#include "tuner/measure/device_lock.hpp"

#include <gmock/gmock.h>

#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

TEST(DeviceLock, IsHeldByOneAndGivenBack) {
  cache_testing::TemporaryDirectory directory;
  const auto give_up = [] { return false; };
  {
    const auto first = DeviceLock::acquire(directory.file(""), "GPU-1/2", give_up);
    ASSERT_TRUE(first.ok());
    const auto second = DeviceLock::acquire(directory.file(""), "GPU-1/2", give_up);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().id, "device-busy");
    EXPECT_TRUE(DeviceLock::acquire(directory.file(""), "GPU-3", give_up).ok())
        << "another GPU is another lock";
  }
  EXPECT_TRUE(DeviceLock::acquire(directory.file(""), "GPU-1/2", give_up).ok());
  EXPECT_THAT(directory.names_with("gpu-GPU-1_2.lock"), ::testing::SizeIs(1));
}

TEST(DeviceLock, NothingToLockOrNowhereToLockIsGranted) {
  const auto give_up = [] { return false; };
  EXPECT_TRUE(DeviceLock::acquire("/nonexistent", "", give_up).ok());
  EXPECT_TRUE(DeviceLock::acquire("/nonexistent", "GPU-1", give_up).ok());
}

}  // namespace
}  // namespace attune
