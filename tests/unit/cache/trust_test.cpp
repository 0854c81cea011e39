// Whose code runs: docs/trust.md, line by line.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "cache/database.hpp"
#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using namespace cache_testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uid_t kStranger = 54321;

std::string folder_of(const std::string& file) {
  return std::filesystem::path(file).parent_path().string();
}

class Trust : public ::testing::Test {
 protected:
  Trust() { fill(directory.file(), 1); }

  // A file with one kernel, its number in it, and one time.
  static void fill(const std::string& path, int number) {
    const auto store = open_store(path).value();
    ASSERT_TRUE(store->put_code(build_key(1), code(number)).ok());
    ASSERT_TRUE(store->record(measurement_key(), measurement("p", 10)).ok());
  }
  void allow(const std::string& path, mode_t mode) const {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  void expect_trusted() {
    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options()).value();
    EXPECT_TRUE(store->find_code(build_key(1)).value().has_value());
    EXPECT_EQ(store->health().code_refused, "");
    EXPECT_THAT(warnings.ids, IsEmpty());
  }
  void expect_measurements_only(const std::string& why) {
    SCOPED_TRACE(why);
    Warnings warnings;
    const auto store = open_store(directory.file(), warnings.options()).value();
    EXPECT_THAT(store->health().code_refused, HasSubstr(why));
    EXPECT_THAT(warnings.ids, IsEmpty()) << "nothing was asked for";
    EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
    EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
    EXPECT_EQ(store->put_code(build_key(2), code(2)).error().id, "cache-untrusted");
    EXPECT_THAT(warnings.ids, ElementsAre("cache-untrusted")) << "said once";
    EXPECT_EQ(store->winner(measurement_key()).value()->median_us, 10);
    EXPECT_TRUE(store->record(measurement_key(4096), measurement("p", 10)).ok());
    EXPECT_EQ(store->health().failed_reads + store->health().failed_writes, 0);
  }

  TemporaryDirectory directory;
};

TEST_F(Trust, FilesThatOthersMayWriteServeMeasurementsOnly) {
  expect_trusted();
  allow(directory.file(), 0664);
  expect_measurements_only("the file may be written by its group");
  allow(directory.file(), 0666);
  expect_measurements_only("the file may be written by anybody");
  allow(directory.file(), 0644);
  expect_trusted();
}

// Who may write there can put a journal beside the file, which SQLite would play into it.
TEST_F(Trust, FoldersThatOthersMayWriteServeMeasurementsOnly) {
  const std::string folder = folder_of(directory.file());
  allow(folder, 0770);
  expect_measurements_only("its folder may be written by its group");
  allow(folder, 01777);
  expect_measurements_only("its folder may be written by anybody");
  allow(folder, 0755);
  expect_trusted();
}

TEST_F(Trust, StrangersFilesServeMeasurementsOnly) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(chown(directory.file().c_str(), kStranger, 0), 0);
  expect_measurements_only("the file belongs to another user");
  ASSERT_EQ(chown(directory.file().c_str(), 0, 0), 0);
  ASSERT_EQ(chown(folder_of(directory.file()).c_str(), kStranger, 0), 0);
  expect_measurements_only("its folder belongs to another user");
}

TEST_F(Trust, IsAskedAnewAtEveryUse) {
  const auto store = open_store(directory.file(), {.warn = [](const Error&) {}}).value();
  EXPECT_TRUE(store->find_code(build_key(1)).value().has_value());
  allow(directory.file(), 0666);
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
  allow(directory.file(), 0644);
  EXPECT_TRUE(store->find_code(build_key(1)).value().has_value());
}

// A lease there would be a stranger's way to keep this process waiting.
TEST_F(Trust, NobodyWaitsForAStranger) {
  allow(directory.file(), 0666);
  {
    SQLite::Database database(directory.file(), SQLite::OPEN_READWRITE);
    database.exec("INSERT INTO lease VALUES ('kernel', 'elsewhere:1', 0, 9000000000000)");
  }
  const auto store = open_store(directory.file(), {.warn = [](const Error&) {}}).value();
  EXPECT_TRUE(store->take_lease("kernel", 60).value());
  allow(directory.file(), 0644);
  EXPECT_FALSE(store->take_lease("kernel", 60).value());
}

TEST_F(Trust, ALinkIsAsGoodAsWhatItLeadsTo) {
  TemporaryDirectory open_to_all;
  allow(folder_of(open_to_all.file()), 0777);
  std::filesystem::create_symlink(directory.file(), open_to_all.file());
  const auto store = open_store(open_to_all.file(), {.warn = [](const Error&) {}}).value();
  EXPECT_TRUE(store->find_code(build_key(1)).value().has_value());
  allow(directory.file(), 0666);
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
}

// Another folder takes the name of the one that was checked: reads, writes and the journal stay in
// the one that was checked.
TEST_F(Trust, WhatWasCheckedIsWhatIsRead) {
  const std::string checked = directory.file("checked"), swapped = directory.file("swapped");
  std::filesystem::create_directory(checked);
  std::filesystem::create_directory(swapped);
  fill(checked + "/attune.db", 1);
  fill(swapped + "/attune.db", 2);
  const auto database = open_database(checked + "/attune.db", {}, false);
  ASSERT_TRUE(database->check_code().ok());
  std::filesystem::rename(checked, directory.file("away"));
  std::filesystem::rename(swapped, checked);
  allow(checked + "/attune.db", 0666);
  EXPECT_TRUE(database->check_code().ok());
  EXPECT_EQ(database->execAndGet("SELECT registers FROM cubin").getInt(), code(1).registers);
  database->exec("DELETE FROM cubin");
  EXPECT_EQ(summarize(directory.file("away/attune.db"))->images, 0);
  EXPECT_EQ(summarize(checked + "/attune.db")->images, 1);
}

TEST_F(Trust, MergeTakesNoCodeOfAStranger) {
  allow(directory.file(), 0666);
  const Merged merged = merge(directory.file(), directory.file("mine.db")).value();
  EXPECT_GT(merged.rows, 0);
  EXPECT_THAT(merged.code_refused, HasSubstr("may be written by anybody"));
  EXPECT_EQ(summarize(directory.file("mine.db"))->images, 0);
  EXPECT_EQ(summarize(directory.file("mine.db"))->measurements, 1);
  damage_header(directory.file());
  EXPECT_GT(merge(directory.file(), directory.file("mine.db"), {.with_code = true})->rows, -1);
  EXPECT_EQ(summarize(directory.file("mine.db"))->images, 0);
}

TEST_F(Trust, MergeWithoutCodeTakesNone) {
  const Merged merged =
      merge(directory.file(), directory.file("mine.db"), {.with_code = false}).value();
  EXPECT_GT(merged.rows, 0);
  EXPECT_EQ(merged.code_refused, "");
  EXPECT_EQ(summarize(directory.file("mine.db"))->images, 0);
  damage_header(directory.file());
  ASSERT_TRUE(merge(directory.file(), directory.file("other.db"), {.with_code = false}).ok());
  EXPECT_EQ(summarize(directory.file("other.db"))->images, 0);
  EXPECT_EQ(summarize(directory.file("other.db"))->measurements, 1);
}

TEST_F(Trust, MergeReplacesNoCode) {
  fill(directory.file("mine.db"), 2);
  ASSERT_TRUE(merge(directory.file(), directory.file("mine.db")).ok());
  const auto store = open_store(directory.file("mine.db")).value();
  EXPECT_EQ(store->find_code(build_key(1)).value()->image, code(2).image);
  EXPECT_EQ(summarize(directory.file("mine.db"))->images, 1)
      << "and brings none that nothing names";
  ASSERT_TRUE(store->put_code(build_key(1), code(3)).ok());
  EXPECT_EQ(store->find_code(build_key(1)).value()->image, code(2).image);
}

TEST_F(Trust, ExportTakesNoCodeOfAStranger) {
  allow(directory.file(), 0666);
  EXPECT_EQ(export_to(directory.file(), directory.file("out.db"), {}).error().id,
            "cache-untrusted");
  ASSERT_TRUE(export_to(directory.file(), directory.file("out.db"), {.with_code = false}).ok());
  EXPECT_EQ(summarize(directory.file("out.db"))->images, 0);
}

// The new file is nobody else's to write; what strangers wrote in the old one must not move there.
TEST_F(Trust, RenewalCarriesNoCodeOfAStranger) {
  allow(directory.file(), 0666);
  damage_header(directory.file());
  Warnings warnings;
  const auto store = open_store(directory.file(), warnings.options()).value();
  EXPECT_THAT(warnings.ids, ElementsAre("cache-damaged"));
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
  EXPECT_EQ(store->winner(measurement_key()).value()->median_us, 10);
}

TEST_F(Trust, WhatIsNoCacheIsNotMerged) {
  std::ofstream(directory.file("notes.txt")) << "spec,us\n" << std::string(5000, 'x');
  std::ofstream(directory.file("short.txt")) << "x";
  std::ofstream(directory.file("empty")).flush();
  {
    SQLite::Database other(directory.file("other.sqlite"),
                           SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    other.exec("CREATE TABLE t (x)");
  }
  for (const char* name : {"notes.txt", "short.txt", "empty", "other.sqlite", "."}) {
    const auto merged = merge(directory.file(name), directory.file("mine.db"));
    ASSERT_FALSE(merged.ok()) << name;
    EXPECT_EQ(merged.error().id, "cache-foreign-file") << name;
  }
  EXPECT_THAT(directory.names_with("mine"), IsEmpty()) << "nothing is made for nothing";
}

}  // namespace
}  // namespace attune::cache
