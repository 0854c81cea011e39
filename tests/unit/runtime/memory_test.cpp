#include "runtime/support/memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace attune {
namespace {

namespace fs = std::filesystem;

// A made-up system's files below a directory of their own.
class AvailableMemory : public testing::Test {
 protected:
  AvailableMemory()
      : root_(fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~AvailableMemory() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const fs::path file = root_.string() + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::int64_t available() const { return available_memory_bytes(root_.string()); }
  const fs::path root_;
};

TEST_F(AvailableMemory, IsTheSystems) {
  write("/proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:  4000 kB\n");
  EXPECT_EQ(available(), 4000 * 1024);
}

TEST_F(AvailableMemory, IsNoMoreThanTheCgroupHasLeft) {
  write("/proc/meminfo", "MemAvailable:  4000 kB\n");
  write("/sys/fs/cgroup/memory.max", "1000000\n");
  write("/sys/fs/cgroup/memory.current", "900000\n");
  EXPECT_EQ(available(), 100000);
  write("/sys/fs/cgroup/memory.stat", "anon 600000\ninactive_file 300000\n");
  EXPECT_EQ(available(), 400000) << "pages of files are given back";
  write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(available(), 4000 * 1024);
}

TEST_F(AvailableMemory, KnowsTheFirstVersionOfCgroups) {
  write("/proc/meminfo", "MemAvailable:  4000 kB\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1200000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, IsWithoutLimitWhereTheSystemDoesNotTell) {
  EXPECT_EQ(available(), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace attune
