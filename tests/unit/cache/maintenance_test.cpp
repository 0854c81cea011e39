#include "cache/maintenance.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include <fstream>

#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using namespace cache_testing;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<Store> filled(const std::string& path, int first, int count) {
  auto store = std::move(*open_store(path));
  for (int i = first; i < first + count; ++i) {
    EXPECT_TRUE(store->put_code(build_key(i), code(i)).ok());
    EXPECT_TRUE(
        store->record(measurement_key(), measurement("plan-" + std::to_string(i), 100 + i)).ok());
  }
  EXPECT_TRUE(
      store->reject(measurement_key(), {.plan = "bad", .reason = "hang", .detail = path}).ok());
  return store;
}

TEST(Merge, IsTheUnion) {
  TemporaryDirectory directory;
  const auto a = filled(directory.file("a.db"), 0, 3);
  const auto b = filled(directory.file("b.db"), 2, 3);
  EXPECT_GT(merge(directory.file("b.db"), directory.file("a.db"))->rows, 0);
  EXPECT_THAT(a->measurements(measurement_key()).value(), SizeIs(6));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a->find_code(build_key(i)).value()->image, code(i).image);
  EXPECT_EQ(merge(directory.file("b.db"), directory.file("a.db"))->rows, 0)
      << "a second time changes nothing";
  EXPECT_EQ(merge(directory.file("a.db"), directory.file("a.db"))->rows, 0);
  EXPECT_GT(merge(directory.file("a.db"), directory.file("it's new.db"))->rows, 0)
      << "made when missing";
  EXPECT_FALSE(merge(directory.file("missing.db"), directory.file("a.db")).ok());
}

TEST(Merge, TakesWhatIsSoundOfADamagedFile) {
  TemporaryDirectory directory;
  filled(directory.file("a.db"), 0, 5);
  {
    std::fstream file(directory.file("a.db"), std::ios::in | std::ios::out | std::ios::binary);
    file.write(std::string(16, 'x').data(), 16);
  }
  EXPECT_GT(merge(directory.file("a.db"), directory.file("b.db"))->rows, 0);
  EXPECT_THAT((*open_store(directory.file("b.db")))->measurements(measurement_key()).value(),
              SizeIs(5));
  EXPECT_THAT(directory.names_with("corrupt"), IsEmpty()) << "the source is only read";
}

TEST(Export, WritesOneSpecWithOrWithoutCode) {
  TemporaryDirectory directory;
  const auto store = filled(directory.file("a.db"), 0, 3);
  auto other = measurement_key();
  other.spec_hash = "another";
  ASSERT_TRUE(store->record(other, measurement("x", 1)).ok());
  ASSERT_TRUE(
      export_to(directory.file("a.db"), directory.file("spec.db"), {.spec_hash = "spec"}).ok());
  ASSERT_TRUE(
      export_to(directory.file("a.db"), directory.file("times.db"), {.with_code = false}).ok());
  EXPECT_EQ(summarize(directory.file("spec.db"))->specs, 1);
  EXPECT_EQ(summarize(directory.file("spec.db"))->images, 3);
  EXPECT_EQ(summarize(directory.file("times.db"))->specs, 2);
  EXPECT_EQ(summarize(directory.file("times.db"))->images, 0);
  EXPECT_TRUE(verify(directory.file("spec.db"))->ok());
  EXPECT_EQ(export_to(directory.file("a.db"), directory.file("spec.db"), {}).error().id,
            "cache-exists");
}

TEST(Verify, FindsDamageThatReadsPassOver) {
  TemporaryDirectory directory;
  filled(directory.file("a.db"), 0, 3);
  EXPECT_TRUE(verify(directory.file("a.db"))->ok());
  std::ifstream input(directory.file("a.db"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(input)), {});
  const auto at = bytes.find("events-cold");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'E';
  std::ofstream(directory.file("a.db"), std::ios::binary) << bytes;
  const auto report = verify(directory.file("a.db"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->damaged_rows, 1);
  EXPECT_FALSE(report->ok());
  // 3 codes, builds and measurements, 4 candidates, problem and rejection; the damaged env is not
  // carried, so that nothing can be read from the measurements and the rejection.
  const auto rebuilt = rebuild(directory.file("a.db"));
  ASSERT_TRUE(rebuilt.ok());
  EXPECT_EQ(rebuilt->rows, 15);
  EXPECT_EQ(rebuilt->lost, (std::map<std::string, int>{{"env", 1}}));
  EXPECT_TRUE(rebuilt->uncounted.empty());
  EXPECT_TRUE(verify(directory.file("a.db"))->ok());
  EXPECT_EQ(verify(directory.file("a.db"))->orphaned_rows, 4);
  // They count again as soon as the env is known again.
  const auto store = std::move(*open_store(directory.file("a.db")));
  ASSERT_TRUE(store->record(measurement_key(), measurement("fresh", 90)).ok());
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(4));
  EXPECT_EQ(verify(directory.file("a.db"))->orphaned_rows, 0);
}

// The page of the table itself is gone; that of its primary key says what stood there.
TEST(Rebuild, CountsWhatIsLostThroughAnIndex) {
  TemporaryDirectory directory;
  filled(directory.file("a.db"), 0, 3);
  int page = 0;
  {
    SQLite::Database database(directory.file("a.db"));
    page = database.execAndGet("SELECT rootpage FROM sqlite_schema WHERE name = 'measurement'")
               .getInt();
    ASSERT_EQ(database.execAndGet("PRAGMA page_size").getInt(), 4096);
  }
  std::fstream file(directory.file("a.db"), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(4096 * (page - 1));
  file << std::string(4096, '!');
  file.close();
  const auto rebuilt = rebuild(directory.file("a.db"));
  ASSERT_TRUE(rebuilt.ok());
  EXPECT_EQ(rebuilt->lost, (std::map<std::string, int>{{"measurement", 3}}));
  EXPECT_TRUE(rebuilt->uncounted.empty());
}

TEST(Rebuild, SaysWhereNothingCanBeCounted) {
  TemporaryDirectory directory;
  filled(directory.file("a.db"), 0, 3);
  std::fstream file(directory.file("a.db"), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(100);  // behind the header, which bears our mark: the schema's page
  file << std::string(3000, '!');
  file.close();
  const auto rebuilt = rebuild(directory.file("a.db"));
  ASSERT_TRUE(rebuilt.ok());
  EXPECT_GT(rebuilt->rows, 0);
  EXPECT_TRUE(rebuilt->lost.empty());
  EXPECT_THAT(rebuilt->uncounted, SizeIs(10)) << "every table of facts";
}

TEST(Gc, DropsWhatNobodyNeedsAndNoFact) {
  TemporaryDirectory directory;
  const auto store = filled(directory.file("a.db"), 0, 10);
  ASSERT_TRUE(store->take_lease("forgotten", -1).value());
  std::ofstream(directory.file("a.db.new-1234")) << "x";
  std::filesystem::last_write_time(
      directory.file("a.db.new-1234"),
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  const auto report = collect_garbage(directory.file("a.db"), {.limit_bytes = 150'000});
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->evicted_images, 0);
  EXPECT_LT(report->bytes_after, report->bytes_before);
  EXPECT_EQ(report->leases, 1);
  EXPECT_EQ(report->temporary_files, 1);
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(10));
  EXPECT_TRUE(verify(directory.file("a.db"))->ok());
}

}  // namespace
}  // namespace attune::cache
