// Every system call of a session fails once, in every way; nothing crashes, nothing wrong is
// answered, and what was there and what was committed stays.
#include <gtest/gtest.h>

#include <filesystem>

#include "cache/maintenance.hpp"
#include "tests/fault/fault_vfs.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

using namespace cache_testing;
using namespace fault_testing;

constexpr int kBefore = 5;  // facts in the file before the session

void make_base(const std::string& path) {
  const auto store = std::move(*open_store(path));
  for (int i = 0; i < kBefore; ++i) {
    ASSERT_TRUE(store->put_code(build_key(i), code(i, 9000)).ok());
    ASSERT_TRUE(store->record(measurement_key(), measurement(build_key(i).plan, 10 + i)).ok());
  }
}

// A file that knows two facts more.
constexpr int kMerged = 2, kFirstMerged = 200;
void make_other(const std::string& path) {
  const auto store = std::move(*open_store(path));
  for (int i = kFirstMerged; i < kFirstMerged + kMerged; ++i)
    ASSERT_TRUE(store->put_code(build_key(i), code(i, 9000)).ok());
}

// Opens, reads, writes and merges under the armed fault. Returns which of the facts 100.. and 200..
// were committed.
std::vector<int> session(const std::string& path, const std::string& other,
                         const StoreOptions& options) {
  std::vector<int> committed;
  if (cache::merge(other, path, {.store = options}).ok()) {
    for (int i = kFirstMerged; i < kFirstMerged + kMerged; ++i) committed.push_back(i);
  }
  const auto store = open_store(path, options);
  if (!store.ok()) return committed;
  for (int i = 0; i < kBefore; ++i) {
    const auto found = (*store)->find_code(build_key(i));
    if (found.ok() && found->has_value()) {
      EXPECT_EQ((*found)->image, code(i, 9000).image);
    }
  }
  const auto winner = (*store)->winner(measurement_key());
  if (winner.ok() && winner->has_value()) {
    EXPECT_EQ((*winner)->plan, build_key(0).plan);
  }
  for (int i = 100; i < 103; ++i) {
    if ((*store)->put_code(build_key(i), code(i, 9000)).ok()) committed.push_back(i);
  }
  (void)(*store)->record(measurement_key(), measurement("late", 500));
  (void)(*store)->take_lease("lease", 1);
  (void)(*store)->pin_code(build_key(0), true);
  (void)(*store)->winners(kDevice);
  return committed;
}

class IoFault : public ::testing::TestWithParam<std::pair<Fault, bool>> {
 protected:
  // Where not every call has its turn, it has it in one of the modes.
  static int first_call() {
    const auto [fault, for_good] = GetParam();
    return 1 + (static_cast<int>(fault) * 2 + for_good) % POINT_STEP;
  }
};

TEST_P(IoFault, AtEveryCall) {
  const auto [fault, for_good] = GetParam();
  TemporaryDirectory directory;
  make_base(directory.file("base.db"));
  make_other(directory.file("other.db"));
  for (int at_call = first_call();; at_call += POINT_STEP) {
    ASSERT_LT(at_call, 5000);
    const std::string path = directory.file("copy.db");
    std::filesystem::copy_file(directory.file("base.db"), path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(path + "-journal");
    Warnings warnings;
    StoreOptions options = warnings.options();
    options.vfs = arm({.fault = fault, .at_call = at_call, .for_good = for_good});
    const std::vector<int> committed = session(path, directory.file("other.db"), options);
    const bool struck = calls() >= at_call;
    arm({});

    const auto store = open_store(path, warnings.options());
    ASSERT_TRUE(store.ok()) << "call " << at_call << ": " << render(store.error());
    for (int i = 0; i < kBefore; ++i) {
      const auto found = (*store)->find_code(build_key(i)).value();
      ASSERT_TRUE(found.has_value()) << "call " << at_call;
      ASSERT_EQ(found->image, code(i, 9000).image);
    }
    for (const int i : committed)
      ASSERT_TRUE((*store)->find_code(build_key(i)).value().has_value()) << "call " << at_call;
    ASSERT_EQ((*store)->winner(measurement_key()).value()->plan, build_key(0).plan);
    ASSERT_TRUE(cache::verify(path)->ok()) << "call " << at_call;
    for (const std::string& name : directory.names_with(".corrupt-"))
      std::filesystem::remove(directory.file(name));
    if (!struck) break;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, IoFault,
    ::testing::Values(std::pair(Fault::kNoSpace, false), std::pair(Fault::kNoSpace, true),
                      std::pair(Fault::kIoError, false), std::pair(Fault::kIoError, true),
                      std::pair(Fault::kShortWrite, false), std::pair(Fault::kShortWrite, true)));

// Room is made for new code: what is pinned stays, and every fact.
TEST_P(IoFault, AtEveryCallOfAnEviction) {
  const auto [fault, for_good] = GetParam();
  TemporaryDirectory directory;
  make_base(directory.file("base.db"));
  ASSERT_TRUE((*open_store(directory.file("base.db")))->pin_code(build_key(1), true).value());
  const std::string path = directory.file("copy.db");
  for (int at_call = first_call();; at_call += POINT_STEP) {
    ASSERT_LT(at_call, 1000);
    std::filesystem::copy_file(directory.file("base.db"), path,
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(path + "-journal");
    Warnings warnings;
    StoreOptions options = warnings.options();
    options.size_limit_bytes = std::int64_t{70'000};
    options.vfs = arm({.fault = fault, .at_call = at_call, .for_good = for_good});
    const bool stored = [&] {
      const auto store = open_store(path, options);
      return store.ok() && (*store)->put_code(build_key(100), code(100, 30'000)).ok();
    }();
    const bool struck = calls() >= at_call;
    arm({});
    const auto store = std::move(*open_store(path, warnings.options()));
    int left = 0;
    for (int i = 0; i < kBefore; ++i) left += store->find_code(build_key(i)).value().has_value();
    ASSERT_EQ(store->find_code(build_key(1)).value()->image, code(1, 9000).image);
    // A call that fails after the commit leaves it unreported.
    const bool there = store->find_code(build_key(100)).value().has_value();
    ASSERT_TRUE(there || !stored) << "call " << at_call;
    ASSERT_EQ(left < kBefore, there) << "all of the transaction or nothing; call " << at_call;
    ASSERT_EQ(store->measurements(measurement_key()).value().size(), std::size_t{kBefore});
    ASSERT_TRUE(cache::verify(path)->ok()) << "call " << at_call;
    if (!struck) break;
  }
}

// A first use on a disk that is full or fails: no cache, or a whole one, and no rubbish.
TEST_P(IoFault, AtEveryCallOfACreation) {
  const auto [fault, for_good] = GetParam();
  for (int at_call = first_call();; at_call += POINT_STEP) {
    ASSERT_LT(at_call, 1000);
    TemporaryDirectory directory;
    Warnings warnings;
    StoreOptions options = warnings.options();
    options.vfs = arm({.fault = fault, .at_call = at_call, .for_good = for_good});
    const bool stored = [&] {
      const auto store = open_store(directory.file(), options);
      return store.ok() && (*store)->put_code(build_key(1), code(1)).ok();
    }();
    const bool struck = calls() >= at_call;
    arm({});
    EXPECT_TRUE(directory.names_with(".new-").empty()) << "call " << at_call;
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok()) << "call " << at_call << ": " << render(store.error());
    if (stored) {
      ASSERT_EQ((*store)->find_code(build_key(1)).value()->image, code(1).image);
    }
    ASSERT_TRUE((*store)->put_code(build_key(1), code(1)).ok()) << "call " << at_call;
    ASSERT_TRUE(cache::verify(directory.file())->ok()) << "call " << at_call;
    if (!struck) break;
  }
}

// A damaged file, found on a disk that is full or fails: its facts are there once the disk is well.
TEST_P(IoFault, AtEveryCallOfASalvage) {
  const auto [fault, for_good] = GetParam();
  TemporaryDirectory base;
  make_base(base.file());
  damage_header(base.file());
  for (int at_call = first_call();; at_call += POINT_STEP) {
    ASSERT_LT(at_call, 1000);
    TemporaryDirectory directory;
    std::filesystem::copy_file(base.file(), directory.file());
    Warnings warnings;
    StoreOptions options = warnings.options();
    options.vfs = arm({.fault = fault, .at_call = at_call, .for_good = for_good});
    (void)open_store(directory.file(), options);
    const bool struck = calls() >= at_call;
    arm({});
    const auto store = open_store(directory.file(), warnings.options());
    ASSERT_TRUE(store.ok()) << "call " << at_call << ": " << render(store.error());
    for (int i = 0; i < kBefore; ++i) {
      const auto found = (*store)->find_code(build_key(i)).value();
      ASSERT_TRUE(found.has_value()) << "call " << at_call;
      ASSERT_EQ(found->image, code(i, 9000).image);
    }
    ASSERT_EQ((*store)->winner(measurement_key()).value()->plan, build_key(0).plan);
    ASSERT_TRUE(cache::verify(directory.file())->ok()) << "call " << at_call;
    EXPECT_FALSE(warnings.ids.empty());
    EXPECT_EQ(directory.names_with(".corrupt-").size(), 1u) << "call " << at_call;
    EXPECT_TRUE(directory.names_with(".damaged").empty());
    if (!struck) break;
  }
}

TEST(IoFault, FailedWritesAreCountedAndNamed) {
  TemporaryDirectory directory;
  make_base(directory.file());
  const auto store = std::move(*open_store(directory.file(), {.vfs = arm({})}));
  arm({.fault = Fault::kShortWrite, .at_call = 1, .for_good = true});
  const Status status = store->put_code(build_key(50), code(50));
  arm({});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().id, "cache-full");
  EXPECT_EQ(store->health().failed_writes, 1);
  EXPECT_TRUE(store->put_code(build_key(50), code(50)).ok()) << "room again";
}

}  // namespace
}  // namespace attune
