// Many processes on one file, and clocks that lie.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include <fstream>

#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/cache/processes.hpp"

namespace attune {
namespace {

using namespace cache_testing;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A minute: 64 processes on two cores take turns.
StoreOptions patient(Warnings& warnings) {
  StoreOptions options = warnings.options();
  options.busy_timeout_ms = 60'000;
  return options;
}

TEST(Processes, SixtyFourStartColdOnOneFile) {
  TemporaryDirectory directory;
  EXPECT_TRUE(in_processes(64, [&](int i) {
    Warnings warnings;
    const auto store = open_store(directory.file(), patient(warnings));
    return store.ok() && (*store)->put_code(build_key(i), code(i, 3000)).ok() &&
           (*store)->record(measurement_key(), measurement(build_key(i).plan, 1 + i)).ok() &&
           (*store)->find_code(build_key(i)).value()->image == code(i, 3000).image &&
           warnings.ids.empty();
  }));
  const auto store = std::move(*open_store(directory.file()));
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(store->find_code(build_key(i)).value()->image, code(i, 3000).image);
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(64));
  EXPECT_TRUE(cache::verify(directory.file())->ok());
  EXPECT_THAT(directory.names_with(".new-"), IsEmpty());
}

TEST(Processes, ADamagedFileIsSetAsideOnceAndSalvagedForAll) {
  TemporaryDirectory directory;
  {
    const auto store = std::move(*open_store(directory.file()));
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(store->put_code(build_key(i), code(i)).ok());
  }
  std::fstream(directory.file(), std::ios::in | std::ios::out | std::ios::binary)
      << "garbage where the mark was";
  EXPECT_TRUE(in_processes(12, [&](int i) {
    Warnings warnings;
    const auto store = open_store(directory.file(), patient(warnings));
    return store.ok() && (*store)->put_code(build_key(100 + i), code(i, 1000)).ok();
  }));
  EXPECT_THAT(directory.names_with(".corrupt-"), SizeIs(1));
  const auto store = std::move(*open_store(directory.file()));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store->find_code(build_key(i)).value().has_value()) << i;
  for (int i = 100; i < 112; ++i)
    EXPECT_TRUE(store->find_code(build_key(i)).value().has_value()) << i;
}

TEST(Processes, ALeaseIsHeldByOneAndFreeWhenItsHolderDied) {
  TemporaryDirectory directory;
  ASSERT_TRUE(open_store(directory.file()).ok());
  ASSERT_TRUE(in_processes(
      1, [&](int) { return (*open_store(directory.file()))->take_lease("kernel", 3600).value(); }));
  // That process is dead, its lease runs for an hour.
  const auto store = std::move(*open_store(directory.file()));
  ASSERT_TRUE(store->take_lease("kernel", 3600).value());
  EXPECT_TRUE(in_processes(4, [&](int) {
    return !(*open_store(directory.file()))->take_lease("kernel", 3600).value();
  })) << "this process lives and holds it";
  ASSERT_TRUE(store->give_lease("kernel").ok());
  EXPECT_TRUE(in_processes(
      1, [&](int) { return (*open_store(directory.file()))->take_lease("kernel", 1).value(); }));
}

TEST(Processes, ALockedFileIsAnErrorAfterItsTimeNotAWaitForEver) {
  TemporaryDirectory directory;
  Warnings warnings;
  StoreOptions impatient = warnings.options();
  impatient.busy_timeout_ms = 1;
  const auto store = std::move(*open_store(directory.file(), impatient));
  {
    SQLite::Database other(directory.file(), SQLite::OPEN_READWRITE);
    other.exec("BEGIN EXCLUSIVE");
    EXPECT_EQ(store->put_code(build_key(1), code(1)).error().id, "cache-locked");
    EXPECT_EQ(store->find_code(build_key(1)).error().id, "cache-locked");
    EXPECT_EQ(open_store(directory.file(), impatient).error().id, "cache-locked");
  }
  EXPECT_TRUE(store->put_code(build_key(1), code(1)).ok());
  EXPECT_EQ(store->health().failed_writes, 1);
  EXPECT_THAT(directory.names_with(".corrupt-"), IsEmpty());
}

TEST(Clock, GoingBackwardsChangesNoAnswer) {
  TemporaryDirectory directory;
  const auto store = std::move(*open_store(directory.file(), {.size_limit_bytes = 500'000}));
  ASSERT_TRUE(store->put_code(build_key(1), code(1)).ok());
  auto later = measurement("a", 10);
  later.measured_at = "2099-01-01T00:00:00Z";
  auto earlier = measurement("b", 5);
  earlier.measured_at = "1999-01-01T00:00:00Z";
  ASSERT_TRUE(store->record(measurement_key(), later).ok());
  ASSERT_TRUE(store->record(measurement_key(), earlier).ok());
  EXPECT_EQ(store->winner(measurement_key()).value()->plan, "b");
  {
    // What a process wrote whose clock ran years ahead.
    SQLite::Database database(directory.file(), SQLite::OPEN_READWRITE);
    database.exec(
        "INSERT INTO lease VALUES ('kernel', 'elsewhere:1', 4102444800000, 4102444860000)");
    database.exec("UPDATE cubin SET last_used = 4102444800");
  }
  EXPECT_TRUE(store->take_lease("kernel", 10).value()) << "a lease from the future binds nobody";
  EXPECT_EQ(store->find_code(build_key(1)).value()->image, code(1).image);
  for (int i = 2; i < 40; ++i) ASSERT_TRUE(store->put_code(build_key(i), code(i)).ok());
  EXPECT_TRUE(store->find_code(build_key(39)).value().has_value())
      << "eviction still spares the newest";
}

}  // namespace
}  // namespace attune
