#include "cache/store.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "cache/database.hpp"
#include "cache/maintenance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

using namespace cache_testing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<Store> must_open(const std::string& path, const StoreOptions& options = {}) {
  auto store = open_store(path, options);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : render(store.error()));
  return store.ok() ? std::move(*store) : nullptr;
}

void overwrite(const std::string& path, std::size_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(Store, KeepsCodeAcrossReopening) {
  TemporaryDirectory directory;
  must_open(directory.file())->put_code(build_key(1), code(1)).value();
  const auto store = must_open(directory.file());
  const auto found = store->find_code(build_key(1));
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->image, code(1).image);
  EXPECT_EQ((*found)->registers, 129);
  EXPECT_FALSE(store->find_code(build_key(2)).value().has_value());
}

TEST(Store, EmptyCodeIsCodeToo) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  ASSERT_TRUE(store->put_code(build_key(1), CodeRecord{}).ok());
  const auto found = store->find_code(build_key(1));
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_THAT((*found)->image, IsEmpty());
}

TEST(Store, KeepsEveryMeasurement) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  const auto key = measurement_key();
  ASSERT_TRUE(store->record(key, measurement("a", 100)).ok());
  ASSERT_TRUE(store->record(key, measurement("a", 102.5)).ok());
  ASSERT_TRUE(store->record(key, measurement("b", 90)).ok());
  const auto rows = store->measurements(key).value();
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[0].threads, 128);
  EXPECT_EQ(rows[0].conditions, "{}");
  EXPECT_THAT(store->measurements(measurement_key(512)).value(), IsEmpty());
}

TEST(Store, RefusesTimesThatAreNone) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  for (double median_us : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Status status = store->record(measurement_key(), measurement("a", median_us));
    ASSERT_FALSE(status.ok()) << median_us;
    EXPECT_EQ(status.error().id, "cache-bad-measurement");
  }
}

TEST(Store, WinnerIsTheExactShapesElseTheNearest) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  EXPECT_FALSE(store->winner(measurement_key()).value().has_value());
  ASSERT_TRUE(store->record(measurement_key(1024), measurement("short", 10)).ok());
  ASSERT_TRUE(store->record(measurement_key(8192), measurement("long", 500)).ok());
  EXPECT_EQ(store->winner(measurement_key(1024)).value()->plan, "short");
  const auto near = store->winner(measurement_key(6000)).value();
  EXPECT_EQ(near->plan, "long");
  EXPECT_EQ(near->measured_shape.kv_len, 8192);
  auto elsewhere = measurement_key(1024);
  elsewhere.spec_hash = "other spec";
  EXPECT_FALSE(store->winner(elsewhere).value().has_value());
}

TEST(Store, RejectionsReachAsFarAsTheirReason) {
  struct Case {
    std::string reason;
    bool same_shape, other_shape, other_hardware;
  };
  for (const Case& c : {Case{"compile", true, true, true}, Case{"miscompute", true, true, false},
                        Case{"fault", true, true, false}, Case{"hang", true, false, false},
                        Case{"launch", true, false, false}}) {
    TemporaryDirectory directory;
    const auto store = must_open(directory.file());
    const auto key = measurement_key();
    ASSERT_TRUE(store->reject(key, {.plan = "p", .reason = c.reason, .detail = "why"}).ok());
    auto hardware = key;
    hardware.device = "another GPU / driver 1";
    EXPECT_EQ(store->rejections(key).value().size(), c.same_shape) << c.reason;
    EXPECT_EQ(store->rejections(measurement_key(77)).value().size(), c.other_shape) << c.reason;
    EXPECT_EQ(store->rejections(hardware).value().size(), c.other_hardware) << c.reason;
  }
}

TEST(Store, RejectedPlansNeverWin) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  ASSERT_TRUE(store->record(measurement_key(), measurement("fast", 10)).ok());
  ASSERT_TRUE(store->record(measurement_key(), measurement("slow", 20)).ok());
  const auto wrong = measurement("fast", 10);
  ASSERT_TRUE(
      store->reject(measurement_key(512), {wrong.plan, wrong.build_digest, "miscompute", ""}).ok());
  EXPECT_EQ(store->winner(measurement_key()).value()->plan, "slow");
}

TEST(Store, OnePassSaysNothingOfTheOther) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  auto backward = measurement_key();
  backward.pass = Pass::kBackward;
  ASSERT_TRUE(store->record(backward, measurement("faster", 10)).ok());
  EXPECT_FALSE(store->winner(measurement_key()).value().has_value());
  ASSERT_TRUE(store->record(measurement_key(), measurement("slower", 20)).ok());
  EXPECT_EQ(store->winner(measurement_key()).value()->plan, "slower");
  EXPECT_EQ(store->winner(backward).value()->plan, "faster");
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(1));
  EXPECT_THAT(store->winners(kDevice).value(), SizeIs(2));
  ASSERT_TRUE(store->reject(backward, {.plan = "bad", .reason = "miscompute"}).ok());
  EXPECT_THAT(store->rejections(measurement_key()).value(), IsEmpty());
  EXPECT_THAT(store->rejections(backward).value(), SizeIs(1));
}

// A hash names a spec only as long as no other spec has it.
TEST(Store, AnotherSpecOfTheSameHashIsAnsweredNothing) {
  TemporaryDirectory directory;
  Warnings warnings;
  const auto store = must_open(directory.file(), warnings.options());
  BuildKey ours = build_key(1), theirs = build_key(1);
  ours.spec_text = "ours";
  theirs.spec_text = "theirs";
  MeasurementKey our_key = measurement_key(), their_key = measurement_key();
  our_key.spec_text = ours.spec_text;
  their_key.spec_text = theirs.spec_text;
  ASSERT_TRUE(store->put_code(ours, code(1)).ok());
  ASSERT_TRUE(store->record(our_key, measurement("p", 10)).ok());
  EXPECT_TRUE(store->find_code(ours).value().has_value());
  EXPECT_TRUE(store->find_code(build_key(1)).value().has_value()) << "who knows no text asks none";
  EXPECT_THAT(warnings.ids, IsEmpty());

  EXPECT_FALSE(store->find_code(theirs).value().has_value());
  EXPECT_THAT(warnings.ids, ElementsAre("cache-hash-collision"));
  EXPECT_FALSE(store->winner(their_key).value().has_value());
  EXPECT_THAT(store->measurements(their_key).value(), IsEmpty());
  EXPECT_EQ(store->put_code(theirs, code(2)).error().id, "cache-hash-collision");
  EXPECT_EQ(store->record(their_key, measurement("p", 1)).error().id, "cache-hash-collision");
  EXPECT_EQ(store->reject(their_key, {.plan = "p", .reason = "hang"}).error().id,
            "cache-hash-collision");
  EXPECT_EQ(store->find_code(ours).value()->image, code(1).image);
  EXPECT_EQ(store->winner(our_key).value()->median_us, 10);
}

TEST(Store, FileIsPublishedWholeAndLeavesNothingBeside) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file("deep/er/attune.db"));
  struct stat info{};
  ASSERT_EQ(stat(directory.file("deep").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat(directory.file("deep/er/attune.db").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0133, 0u);
  EXPECT_THAT(directory.names_with(".new-"), IsEmpty());
}

TEST(Store, FromTheFutureIsLeftAlone) {
  TemporaryDirectory directory;
  must_open(directory.file())->put_code(build_key(1), code(1)).value();
  overwrite(directory.file(), 63, std::string(1, cache::kSchemaVersion + 1));  // user_version
  const auto store = open_store(directory.file());
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().id, "cache-from-the-future");
  EXPECT_THAT(directory.names_with("corrupt"), IsEmpty());
}

TEST(Store, ForeignFileIsLeftAlone) {
  TemporaryDirectory directory;
  std::ofstream(directory.file("notes.txt")) << std::string(5000, 'x');
  const auto store = open_store(directory.file("notes.txt"));
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().id, "cache-foreign-file");
  EXPECT_THAT(directory.names_with(""), ElementsAre("notes.txt"));
  EXPECT_EQ(open_store(directory.file("")).error().id, "cache-foreign-file");  // a directory
}

TEST(Store, EmptyFileBecomesACache) {
  TemporaryDirectory directory;
  std::ofstream(directory.file()).flush();
  EXPECT_TRUE(must_open(directory.file())->put_code(build_key(1), code(1)).ok());
}

TEST(Store, ReadOnlyNeitherCreatesNorWrites) {
  TemporaryDirectory directory;
  EXPECT_EQ(open_store(directory.file(), {.read_only = true}).error().id, "cache-absent");
  must_open(directory.file())->put_code(build_key(1), code(1)).value();
  const auto store = must_open(directory.file(), {.read_only = true});
  EXPECT_TRUE(store->find_code(build_key(1)).value().has_value());
  EXPECT_EQ(store->put_code(build_key(2), code(2)).error().id, "cache-read-only");
  EXPECT_EQ(store->health().failed_writes, 1);
}

TEST(Store, DamagedHeaderIsSetAsideAndSalvaged) {
  TemporaryDirectory directory;
  {
    const auto store = must_open(directory.file());
    for (int i = 0; i < 20; ++i) store->put_code(build_key(i), code(i)).value();
    for (int i = 0; i < 200; ++i) {
      store->record(measurement_key(), measurement("p" + std::to_string(i), 1000.0 + i)).value();
    }
  }
  overwrite(directory.file(), 0, std::string(100, '\xff'));
  overwrite(directory.file(), 0, "SQLite format 3");
  Warnings warnings;
  const auto store = must_open(directory.file(), warnings.options());
  EXPECT_THAT(warnings.ids, ElementsAre("cache-damaged"));
  EXPECT_THAT(directory.names_with(".corrupt-"), SizeIs(1));
  EXPECT_EQ(store->health().set_aside, 1);
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(200));
  EXPECT_EQ(store->winner(measurement_key()).value()->median_us, 1000);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(store->find_code(build_key(i)).value()->image, code(i).image) << i;
}

// Shares and classes are whole numbers as often as not, which a file has as integers.
TEST(Store, WhatADamagedFilesTimesWereMeasuredOnIsCarriedOver) {
  for (const MaskData& data : {MaskData{.label = "lengths=equal", .lengths = {1, 1, 16}},
                               MaskData{.label = "t0=few", .live = 1, .full = 0}}) {
    TemporaryDirectory directory;
    MeasurementKey key = measurement_key();
    key.data = data;
    must_open(directory.file())->record(key, measurement("p", 1000)).value();
    damage_header(directory.file());
    Warnings warnings;
    const auto winner = must_open(directory.file(), warnings.options())->winner(key).value();
    ASSERT_TRUE(winner.has_value());
    ASSERT_THAT(winner->by_data, SizeIs(1));
    EXPECT_EQ(winner->by_data[0].data, data);
  }
}

// One that a process did not get to the end of, and then its successor: by a store, and by hand.
TEST(Store, TwoDamagedFilesAreBothCarriedOver) {
  for (const bool by_hand : {false, true}) {
    TemporaryDirectory directory;
    for (const auto& [number, name] : {std::pair(0, "first.db"), std::pair(1, "attune.db")}) {
      must_open(directory.file(name))->put_code(build_key(number), code(number)).value();
      damage_header(directory.file(name));
    }
    std::filesystem::rename(directory.file("first.db"), directory.file() + ".damaged");
    if (by_hand) {
      ASSERT_TRUE(cache::rebuild(directory.file()).ok());
    }
    Warnings warnings;
    const auto store = must_open(directory.file(), warnings.options());
    EXPECT_EQ(warnings.ids.size(), by_hand ? 0u : 1u);
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(store->find_code(build_key(i)).value().has_value()) << i;
    EXPECT_THAT(directory.names_with(".corrupt-"), SizeIs(2));
    EXPECT_THAT(directory.names_with(".damaged"), IsEmpty());
  }
}

TEST(Store, DamagedCodeIsNotFound) {
  TemporaryDirectory directory;
  must_open(directory.file())->put_code(build_key(1), code(1)).value();
  const auto image = code(1).image;
  std::ifstream input(directory.file(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(input)), {});
  const auto at = bytes.find(std::string(image.begin() + 5000, image.begin() + 5016));
  ASSERT_NE(at, std::string::npos);
  overwrite(directory.file(), at, "?");
  Warnings warnings;
  const auto store = must_open(directory.file(), warnings.options());
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
  EXPECT_THAT(warnings.ids, ElementsAre("cache-damaged-code"));
  ASSERT_TRUE(store->put_code(build_key(1), code(1)).ok());
  EXPECT_EQ(store->find_code(build_key(1)).value()->image, image);
}

TEST(Store, FollowsAFileThatWasReplaced) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  store->put_code(build_key(1), code(1)).value();
  std::filesystem::remove(directory.file());
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
  EXPECT_TRUE(store->put_code(build_key(1), code(1)).ok());
  EXPECT_TRUE(must_open(directory.file())->find_code(build_key(1)).value().has_value());
}

TEST(Store, EvictsTheLeastRecentlyUsedButNothingPinned) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file(), {.size_limit_bytes = 600'000});
  ASSERT_TRUE(store->put_code(build_key(0), code(0, 100'000)).ok());
  ASSERT_TRUE(store->pin_code(build_key(0), true).value());
  EXPECT_FALSE(store->pin_code(build_key(99), true).value());
  ASSERT_TRUE(store->record(measurement_key(), measurement("kept", 5)).ok());
  for (int i = 1; i <= 20; ++i) ASSERT_TRUE(store->put_code(build_key(i), code(i, 100'000)).ok());
  EXPECT_LE(std::filesystem::file_size(directory.file()), 700'000u);
  EXPECT_TRUE(store->find_code(build_key(0)).value().has_value());
  EXPECT_TRUE(store->find_code(build_key(20)).value().has_value());
  EXPECT_FALSE(store->find_code(build_key(1)).value().has_value());
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(1));
}

TEST(Store, WhatIsUsedStaysWhatIsNotGoes) {
  TemporaryDirectory directory;
  constexpr int kStored = 8;
  {
    const auto store = must_open(directory.file());
    for (int i = 0; i < kStored; ++i)
      ASSERT_TRUE(store->put_code(build_key(i), code(i, 100'000)).ok());
    // The first was used first, years ago, and so on.
    SQLite::Database database(directory.file(), SQLite::OPEN_READWRITE);
    for (int i = 0; i < kStored; ++i) {
      SQLite::Statement used(database, "UPDATE cubin SET last_used = ?1 WHERE registers = ?2");
      used.bind(1, 1'000'000 + i);
      used.bind(2, code(i).registers);
      ASSERT_EQ(used.exec(), 1);
    }
  }
  const auto store = must_open(directory.file(), {.size_limit_bytes = 635'000});
  ASSERT_TRUE(store->find_code(build_key(1)).value().has_value()) << "used again, now";
  ASSERT_TRUE(store->put_code(build_key(kStored), code(kStored, 100'000)).ok());
  std::vector<int> left;
  for (int i = 0; i <= kStored; ++i) {
    if (store->find_code(build_key(i)).value().has_value()) left.push_back(i);
  }
  EXPECT_THAT(left, ElementsAre(1, 5, 6, 7, 8));
}

TEST(Store, DefaultPathFollowsTheEnvironment) {
  setenv("ATTUNE_CACHE", "/x/y.db", 1);
  EXPECT_EQ(default_store_path(), "/x/y.db");
  setenv("ATTUNE_CACHE", "none", 1);
  EXPECT_EQ(default_store_path(), "");
  unsetenv("ATTUNE_CACHE");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(default_store_path(), "/xdg/attune/attune.db");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/one", 1);
  EXPECT_EQ(default_store_path(), "/home/one/.cache/attune/attune.db");
}

TEST(Store, WithoutAHomeThereIsNoDefaultPath) {
  for (const char* home : {"", "relative"}) {
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
    EXPECT_EQ(default_store_path(), "");
  }
  unsetenv("HOME");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(default_store_path(), "");
}

TEST(Store, LeaseIsHeldByOneLivingProcess) {
  TemporaryDirectory directory;
  const auto store = must_open(directory.file());
  EXPECT_TRUE(store->take_lease("kernel", 60).value());
  EXPECT_TRUE(store->take_lease("kernel", 60).value()) << "its own holder may renew it";
  EXPECT_TRUE(store->give_lease("kernel").ok());
}

TEST(Store, KindsOfDataAreTimedApart) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.file()).value();
  MeasurementKey many = measurement_key(), few = measurement_key();
  many.data = {.label = "t0=many", .live = 0.1, .full = 0.05};
  few.data = {.label = "t0=few", .live = 0.8, .full = 0.5};
  ASSERT_TRUE(store->record(many, measurement("a", 10)).ok());
  ASSERT_TRUE(store->record(many, measurement("b", 11)).ok());
  ASSERT_TRUE(store->record(few, measurement("a", 30)).ok());
  ASSERT_TRUE(store->record(few, measurement("b", 20)).ok());
  EXPECT_THAT(store->measurements(many).value(), SizeIs(2));
  EXPECT_THAT(store->measurements(measurement_key()).value(), SizeIs(0));
  EXPECT_EQ(store->winner(many).value()->plan, "a");
  EXPECT_EQ(store->winner(few).value()->plan, "b");
  EXPECT_EQ(store->winner(measurement_key()).value()->plan, "b") << "loses 1.1 at most, not 1.5";
  const auto all = store->winners(kDevice).value();
  ASSERT_THAT(all, SizeIs(1));
  ASSERT_THAT(all.front().winner.by_data, SizeIs(2));
  EXPECT_EQ(all.front().winner.by_data.front().data, few.data);
  EXPECT_EQ(cache::summarize(directory.file())->problems, 1) << "of two kinds of data";
}

TEST(Store, LengthsOfSequencesAreTimedApart) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.file()).value();
  const auto of = [](const char* label, const LengthClass& lengths) {
    MeasurementKey key = measurement_key();
    key.data = {.label = label, .lengths = lengths};
    return key;
  };
  const MeasurementKey equal = of("lengths=equal", {1, 1, 16}),
                       skewed = of("lengths=skewed(longest=0.5)", {8, 0.125, 16}),
                       large = of("lengths=equal; page=64", {1, 1, 64});
  for (const auto& [key, fastest] : {std::pair(equal, "a"), {skewed, "b"}, {large, "c"}}) {
    for (const char* plan : {"a", "b", "c"})
      ASSERT_TRUE(
          store->record(key, measurement(plan, plan == std::string(fastest) ? 10 : 30)).ok());
  }
  EXPECT_EQ(store->winner(equal).value()->plan, "a");
  EXPECT_EQ(store->winner(skewed).value()->plan, "b");
  EXPECT_EQ(store->winner(large).value()->plan, "c");
  // Of a host that knows the class alone, and of none that was measured.
  EXPECT_EQ(store->winner(of("", {1, 1, 16})).value()->plan, "a");
  EXPECT_EQ(store->winner(of("", {4, 0.25, 16})).value()->plan, "b");
  EXPECT_EQ(store->winner(of("", {1, 1, 128})).value()->plan, "c");
  const auto all = store->winners(kDevice).value();
  ASSERT_THAT(all, SizeIs(1));
  ASSERT_THAT(all.front().winner.by_data, SizeIs(3));
  EXPECT_EQ(all.front().winner.by_data.front().data, equal.data);
}

}  // namespace
}  // namespace attune
