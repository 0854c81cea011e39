// A writer is killed between any two of its system calls; what it had committed is there, and the
// file is whole.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>

#include "cache/contents.hpp"
#include "cache/maintenance.hpp"
#include "tests/fault/fault_vfs.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

using namespace cache_testing;
using namespace fault_testing;

constexpr int kRounds = 500;
constexpr int kWritesPerRound = 4;

// Writes facts first, first + 1, ... and says each number that is committed; dies at the armed
// call.
[[noreturn]] void write_until_killed(const std::string& path, int first, int at_call, int report) {
  const auto store = open_store(path, {.vfs = arm({.fault = Fault::kKill, .at_call = at_call})});
  if (!store.ok()) _exit(2);
  for (int i = first; i < first + kWritesPerRound; ++i) {
    const bool ok = (*store)->put_code(build_key(i), code(i, 6000)).ok() &&
                    (*store)->record(measurement_key(), measurement(build_key(i).plan, 1 + i)).ok();
    if (!ok) _exit(3);
    if (write(report, &i, sizeof i) != static_cast<ssize_t>(sizeof i)) _exit(4);
  }
  _exit(0);
}

// As waitpid has it: how another process ended that opens the file and dies at the armed call.
int open_until_killed(const std::string& path, int at_call) {
  const pid_t child = fork();
  if (child == 0) {
    Warnings quiet;
    StoreOptions options = quiet.options();
    options.vfs = arm({.fault = Fault::kKill, .at_call = at_call});
    _exit(open_store(path, options).ok() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Kill, FiveHundredWritersLoseNothingTheyCommitted) {
  TemporaryDirectory directory;
  std::mt19937 random(11);
  std::uniform_int_distribution<int> call(1, 160);  // a round that nobody kills makes about as many
  int next = 0, killed = 0;
  std::vector<int> committed;
  for (int round = 0; round < kRounds; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const int at_call = call(random);
    const pid_t child = fork();
    if (child == 0) write_until_killed(directory.file(), next, at_call, pipe_ends[1]);
    close(pipe_ends[1]);
    const std::size_t before = committed.size();
    for (int number = 0;
         read(pipe_ends[0], &number, sizeof number) == static_cast<ssize_t>(sizeof number);) {
      committed.push_back(number);
    }
    close(pipe_ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0)
        << "a writer failed: " << WEXITSTATUS(status);
    killed += WIFSIGNALED(status);
    next += kWritesPerRound;

    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok()) << render(store.error());
    for (std::size_t i = before; i < committed.size(); ++i) {
      const auto found = (*store)->find_code(build_key(committed[i])).value();
      ASSERT_TRUE(found.has_value()) << "round " << round;
      ASSERT_EQ(found->image, code(committed[i], 6000).image);
    }
    ASSERT_TRUE(warnings.ids.empty()) << "a kill is no damage: " << warnings.ids.front();
    if (round % 50 == 49) {
      ASSERT_TRUE(cache::verify(directory.file())->ok()) << "round " << round;
    }
  }
  EXPECT_GT(killed, kRounds / 2) << "the kills must hit";
  std::map<std::string, double> medians;
  const auto measurements =
      (*open_store(directory.file()))->measurements(measurement_key()).value();
  for (const Measurement& m : measurements) medians[m.plan] = m.median_us;
  for (const int number : committed) ASSERT_EQ(medians[build_key(number).plan], 1 + number);
}

TEST(Kill, DuringCreationLeavesNoHalfAFile) {
  for (int at_call = 1; at_call <= 60; ++at_call) {
    TemporaryDirectory directory;
    const int status = open_until_killed(directory.file(), at_call);
    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE((*store)->put_code(build_key(1), code(1)).ok());
    EXPECT_TRUE(warnings.ids.empty());
    if (WIFEXITED(status)) return;  // later calls do not happen
  }
  FAIL() << "creation never got through";
}

// A file that is damaged and whose renewal is cut short: whoever comes next ends it.
TEST(Kill, DuringASalvageTheNextProcessGoesOnWithIt) {
  TemporaryDirectory base;
  constexpr int kFacts = 5;
  {
    const auto store = std::move(*open_store(base.file()));
    for (int i = 0; i < kFacts; ++i) {
      ASSERT_TRUE(store->put_code(build_key(i), code(i, 6000)).ok());
      ASSERT_TRUE(store->record(measurement_key(), measurement(build_key(i).plan, 1 + i)).ok());
    }
  }
  damage_header(base.file());
  for (int at_call = 1; at_call <= 200; ++at_call) {
    TemporaryDirectory directory;
    std::filesystem::copy_file(base.file(), directory.file());
    const int status = open_until_killed(directory.file(), at_call);
    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok()) << render(store.error());
    EXPECT_EQ((*store)->measurements(measurement_key()).value().size(), std::size_t{kFacts})
        << "killed at call " << at_call;
    for (int i = 0; i < kFacts; ++i) {
      const auto found = (*store)->find_code(build_key(i)).value();
      ASSERT_TRUE(found.has_value()) << "killed at call " << at_call;
      EXPECT_EQ(found->image, code(i, 6000).image);
    }
    EXPECT_TRUE(cache::verify(directory.file())->ok());
    EXPECT_EQ(directory.names_with(".corrupt-").size(), 1u) << "killed at call " << at_call;
    EXPECT_TRUE(directory.names_with(".damaged").empty());
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_GT(at_call, 10) << "a renewal makes more calls";
      return;
    }
  }
  FAIL() << "the renewal never got through";
}

TEST(Kill, DuringAMigrationLosesNothing) {
  constexpr std::size_t kMeasurements = 23, kRejections = 30, kCode = 8;
  for (int at_call = 1; at_call <= 200; ++at_call) {
    TemporaryDirectory directory;
    std::filesystem::copy_file("tests/fixtures/cache/v1.db", directory.file());
    const int status = open_until_killed(directory.file(), at_call);
    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok()) << "killed at call " << at_call;
    EXPECT_TRUE(warnings.ids.empty()) << "killed at call " << at_call;
    const CacheContents all = read_contents(directory.file()).value();
    EXPECT_EQ(all.measurements.size(), kMeasurements) << "killed at call " << at_call;
    EXPECT_EQ(all.rejections.size(), kRejections) << "killed at call " << at_call;
    EXPECT_EQ(all.code.size(), kCode) << "killed at call " << at_call;
    EXPECT_TRUE(cache::verify(directory.file())->ok());
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_GT(at_call, 5) << "a migration makes more calls";
      return;
    }
  }
  FAIL() << "the migration never got through";
}

// A disk that is full leaves the file as it was, and all of it to be read.
TEST(NoSpace, DuringAMigrationTheOldFileServes) {
  TemporaryDirectory directory;
  std::filesystem::copy_file("tests/fixtures/cache/v1.db", directory.file());
  Warnings warnings;
  StoreOptions options = warnings.options();
  options.vfs = arm({.fault = Fault::kNoSpace, .at_call = 1, .for_good = true});
  const auto store = open_store(directory.file(), options);
  ASSERT_TRUE(store.ok()) << render(store.error());
  EXPECT_EQ(warnings.ids.size(), 1u);
  const CacheContents all = read_contents(directory.file()).value();
  ASSERT_FALSE(all.measurements.empty());
  EXPECT_TRUE((*store)->winner(all.measurements.front().key).value().has_value());
  EXPECT_FALSE((*store)->record(measurement_key(), measurement("p", 1)).ok());
  arm({});
  EXPECT_TRUE(open_store(directory.file(), warnings.options()).ok());
  EXPECT_EQ(warnings.ids.size(), 1u) << "there is room again";
}

}  // namespace
}  // namespace attune
