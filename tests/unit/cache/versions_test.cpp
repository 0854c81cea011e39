// Files of other schema versions. tests/fixtures/cache/v1.db was written by the last program that
// knew version 1 alone; v1.txt lists its rows as that program read them; v2.db and v3.db are the
// same as the last programs of versions 2 and 3 migrated it.
#include "cache/versions.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "cache/contents.hpp"
#include "cache/database.hpp"
#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using namespace cache_testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kVersion1 = "tests/fixtures/cache/v1.db";

std::string text_of(const ProblemShape& s) {
  return fmt::format("batch={},heads={},kv_heads={},q_len={},kv_len={}", s.batch, s.heads,
                     s.kv_heads, s.q_len, s.kv_len);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> expected_rows() {
  std::istringstream text(bytes_of("tests/fixtures/cache/v1.txt"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// As v1.txt has them.
std::vector<std::string> rows_in(const std::string& path) {
  const auto all = read_contents(path);
  if (!all.ok()) return {render(all.error())};
  std::vector<std::string> lines;
  for (const auto& [key, m] : all->measurements) {
    lines.push_back(fmt::format("measurement|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
                                key.spec_hash, key.device, text_of(key.shape), key.protocol, m.plan,
                                m.build_digest, m.compiler, m.median_us, m.spread_us, m.samples,
                                m.threads, m.registers, m.shared_bytes, m.measured_at,
                                m.conditions));
    EXPECT_EQ(key.pass, Pass::kForward);
  }
  for (const StoredRejection& row : all->rejections) {
    const Rejection& r = row.rejection;
    lines.push_back(fmt::format("rejection|{}|{}|{}|{}|{}|{}|{}", row.spec_hash, row.device,
                                text_of(row.shape), r.plan, r.build_digest, r.reason, r.detail));
  }
  for (const StoredCode& c : all->code) {
    lines.push_back(fmt::format("code|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", c.key.spec_hash,
                                c.key.plan, c.key.body_hash, c.key.compiler, c.key.target,
                                c.content_hash, c.image_bytes, c.registers, c.spill_bytes,
                                c.compile_seconds, c.last_used, c.pinned));
  }
  EXPECT_EQ(all->damaged_rows, 0);
  std::ranges::sort(lines);
  return lines;
}

int number(const std::string& path, const std::string& sql) {
  return SQLite::Database(path, SQLite::OPEN_READONLY).execAndGet(sql).getInt();
}

// What a look-up answers, for every device of the file.
std::vector<std::string> winners_in(const Store& store) {
  std::vector<std::string> lines;
  for (const char* device : {"NVIDIA H200 / 132 SMs / 143771 MiB / driver 580.159",
                             "NVIDIA H200 / 132 SMs / 143771 MiB / driver 590.12",
                             "NVIDIA H100 80GB HBM3 / 132 SMs / 81559 MiB / driver 570.86",
                             "AMD EPYC / 2 threads / avx512"}) {
    const auto winners = store.winners(device).value();
    for (const ProblemWinner& one : winners) {
      lines.push_back(fmt::format("{} {} {} {} {}", device, one.spec_hash,
                                  text_of(one.winner.measured_shape), one.winner.plan,
                                  one.winner.median_us));
    }
  }
  return lines;
}

class OldVersion : public ::testing::TestWithParam<int> {
 protected:
  OldVersion() {
    std::filesystem::copy_file(fmt::format("tests/fixtures/cache/v{}.db", GetParam()),
                               directory.file());
  }
  std::unique_ptr<Store> open(bool read_only = false) {
    StoreOptions options = warnings.options();
    options.read_only = read_only;
    return std::move(open_store(directory.file(), options)).value();
  }
  void expect_all_code(const Store& store) {
    const CacheContents all = read_contents(directory.file()).value();
    ASSERT_THAT(all.code, SizeIs(8));
    for (const StoredCode& code : all.code) {
      const auto found = store.find_code(code.key).value();
      ASSERT_TRUE(found.has_value()) << code.key.plan;
      EXPECT_EQ(std::ssize(found->image), code.image_bytes);
    }
  }
  TemporaryDirectory directory;
  Warnings warnings;
};

TEST_P(OldVersion, IsMigratedWithEveryRow) {
  const auto store = open();
  EXPECT_THAT(warnings.ids, IsEmpty());
  EXPECT_EQ(number(directory.file(), "PRAGMA user_version"), kSchemaVersion);
  EXPECT_EQ(rows_in(directory.file()), expected_rows());
  expect_all_code(*store);
  EXPECT_EQ(number(directory.file(), "SELECT count(*) FROM lease"), 1);
  const VerifyReport report = verify(directory.file()).value();
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.orphaned_rows, 0);
  EXPECT_THAT(directory.names_with(""), ElementsAre("attune.db"));
  // New rows join the old ones.
  const CacheContents all = read_contents(directory.file()).value();
  const MeasurementKey& key = all.measurements.front().key;
  const std::size_t before = store->measurements(key).value().size();
  ASSERT_TRUE(store->record(key, measurement("new", 1)).ok());
  EXPECT_EQ(store->measurements(key).value().size(), before + 1);
}

TEST_P(OldVersion, IsReadAsItIsWhereItMayNotBeWritten) {
  const std::string before = bytes_of(directory.file());
  const auto store = open(/*read_only=*/true);
  EXPECT_EQ(rows_in(directory.file()), expected_rows());
  expect_all_code(*store);
  const auto winners = winners_in(*store);
  EXPECT_THAT(winners, SizeIs(10));
  EXPECT_TRUE(verify(directory.file())->ok());
  EXPECT_EQ(summarize(directory.file())->specs, 3);
  EXPECT_EQ(store->record(measurement_key(), measurement("p", 1)).error().id, "cache-read-only");
  EXPECT_THAT(warnings.ids, IsEmpty());
  EXPECT_EQ(bytes_of(directory.file()), before);
  EXPECT_EQ(winners_in(*open()), winners) << "migrated it answers the same";
}

TEST_P(OldVersion, IsMergedAndExported) {
  ASSERT_GT(merge(directory.file(), directory.file("merged.db"))->rows, 0);
  EXPECT_EQ(rows_in(directory.file("merged.db")), expected_rows());
  ASSERT_TRUE(export_to(directory.file(), directory.file("exported.db"), {}).ok());
  EXPECT_EQ(rows_in(directory.file("exported.db")), expected_rows());
  EXPECT_EQ(number(directory.file(), "PRAGMA user_version"), GetParam()) << "a source is only read";
  ASSERT_TRUE(collect_garbage(directory.file(), {}).ok());
  EXPECT_EQ(rows_in(directory.file()), expected_rows());
}

TEST_P(OldVersion, IsSalvagedWhenItIsDamaged) {
  damage_header(directory.file());
  const auto store = open();
  EXPECT_THAT(warnings.ids, ElementsAre("cache-damaged"));
  EXPECT_EQ(rows_in(directory.file()), expected_rows());
}

TEST_P(OldVersion, MigratedByAnotherProcessIsReadOn) {
  const auto reader = open(/*read_only=*/true);
  const auto winners = winners_in(*reader);
  open();
  EXPECT_EQ(winners_in(*reader), winners);
  EXPECT_EQ(reader->health().damaged_rows, 0);
}

INSTANTIATE_TEST_SUITE_P(Every, OldVersion, ::testing::Values(1, 2, 3));

// Of a table that a migration writes anew; others stay as they are.
TEST(Versions, WithADamagedRowLosesThatRowAlone) {
  TemporaryDirectory directory;
  Warnings warnings;
  std::filesystem::copy_file(kVersion1, directory.file());
  std::string bytes = bytes_of(directory.file());
  // In the record of one problem, which carries four measurements and five rejections.
  SQLite::Database database(directory.file(), SQLite::OPEN_READONLY);
  const std::string digest =
      database.execAndGet("SELECT digest FROM problem WHERE heads = 2").getString();
  const std::string hash = "b88fd488b6f3d74f785d9a9f7c8377e8";
  const auto at = bytes.find(digest + hash);
  ASSERT_NE(at, std::string::npos);
  bytes[at + digest.size()] = 'c';
  std::ofstream(directory.file(), std::ios::binary) << bytes;
  EXPECT_EQ(verify(directory.file())->damaged_rows, 1);
  const auto store = open_store(directory.file(), warnings.options()).value();
  EXPECT_THAT(warnings.ids, IsEmpty());
  EXPECT_EQ(verify(directory.file())->damaged_rows, 0) << "nothing damaged is carried over";
  EXPECT_EQ(verify(directory.file())->orphaned_rows, 4) << "what it was measured for is lost";
  EXPECT_EQ(rows_in(directory.file()).size(), expected_rows().size() - 4);
}

TEST(Versions, ALaterOneIsLeftAlone) {
  TemporaryDirectory directory;
  std::filesystem::copy_file(kVersion1, directory.file());
  {
    SQLite::Database database(directory.file(), SQLite::OPEN_READWRITE);
    database.exec(fmt::format("PRAGMA user_version = {}; ALTER TABLE meta RENAME TO more",
                              kSchemaVersion + 1));
  }
  const std::string before = bytes_of(directory.file());
  for (const bool read_only : {false, true}) {
    const auto store = open_store(directory.file(), {.read_only = read_only});
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.error().id, "cache-from-the-future");
  }
  EXPECT_EQ(merge(directory.file(), directory.file("other.db")).error().id,
            "cache-from-the-future");
  EXPECT_EQ(merge(kVersion1, directory.file()).error().id, "cache-from-the-future");
  EXPECT_EQ(rebuild(directory.file()).error().id, "cache-from-the-future");
  EXPECT_EQ(collect_garbage(directory.file(), {}).error().id, "cache-from-the-future");
  EXPECT_EQ(bytes_of(directory.file()), before);
}

// What SQLite can make nothing of may still say whose it is.
TEST(Versions, ADamagedLaterOneIsLeftAlone) {
  TemporaryDirectory directory;
  std::string bytes = bytes_of(kVersion1);
  bytes[63] = 9;                                      // user_version
  bytes.replace(100, 200, std::string(200, '\xff'));  // the schema's page
  std::ofstream(directory.file(), std::ios::binary) << bytes;
  EXPECT_EQ(open_store(directory.file()).error().id, "cache-from-the-future");
  EXPECT_EQ(rebuild(directory.file()).error().id, "cache-from-the-future");
  EXPECT_EQ(merge(directory.file(), directory.file("other.db")).error().id,
            "cache-from-the-future");
  EXPECT_EQ(bytes_of(directory.file()), bytes);
}

}  // namespace
}  // namespace attune::cache
