// Two tuners at once: of one device, and of one shard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "runtime/device/device.hpp"
#include "tests/cli/process.hpp"
#include "tuner/measure/device_lock.hpp"
#include "tuner/sweep/shard_lock.hpp"

namespace attune::cli_test {
namespace {

using testing::HasSubstr;

std::vector<std::string> tune(const std::string& cache) {
  return {
      "tune", "causal",           "--shape", "heads=2,q_len=64", "--device",
      "cpu",  "--max-candidates", "1",       "--cache",          scratch_directory() + "/" + cache};
}

TEST(Locks, ASecondTunerOfTheCpuWaitsForTheFirst) {
  if (attune({"compile", "causal", "--target", "cpu"}).code == 3)
    GTEST_SKIP() << "no compiler for the CPU is here";
  const auto device = open_cpu_device();
  ASSERT_TRUE(device.ok());
  ASSERT_FALSE((*device)->unit().empty());
  std::optional<DeviceLock> first =
      DeviceLock::acquire((*device)->unit(), [] { return true; }).value();
  Terminal second(tune("second.db"));
  ASSERT_TRUE(second.read_until("waiting for another tuner")) << second.finish().out;
  first.reset();
  const Outcome outcome = second.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("measuring"));
}

TEST(Locks, WaitingEndsAtAnInterrupt) {
  const auto device = open_cpu_device();
  ASSERT_TRUE(device.ok());
  const DeviceLock first = DeviceLock::acquire((*device)->unit(), [] { return true; }).value();
  Terminal second(tune("waiting.db"));
  if (!second.read_until("waiting for another tuner"))
    GTEST_SKIP() << "no compiler for the CPU is here: " << second.finish().out;
  second.type("\x03");
  EXPECT_EQ(second.finish().code, 1);
}

TEST(Locks, AShardThatRunsElsewhereIsNotRunTwice) {
  const std::string directory = scratch_directory() + "/sharded";
  ASSERT_EQ(attune({"sweep", "plan", directory, "causal", "--shape", "heads=2,q_len=64"}).code, 0);
  const ShardLock first = ShardLock::acquire(directory, {}).value();
  const Outcome second = attune({"sweep", "run", directory, "--device", "cpu"});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("another process runs shard 1/1"));
  EXPECT_THAT(second.err, HasSubstr("[sweep-shard-busy]"));
}

}  // namespace
}  // namespace attune::cli_test
