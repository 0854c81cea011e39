#include "cache/snapshot.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "cache/overlay.hpp"
#include "cache/winner.hpp"
#include "tests/unit/cache/allocations.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune {
namespace {

using namespace cache_testing;

ProblemWinner winner(const std::string& spec, const ProblemShape& shape, const std::string& plan) {
  return {spec, {.plan = plan, .median_us = 10, .measured_shape = shape}};
}

TEST(SpecId, ReadsHexAndHashesTheRest) {
  const auto id = SpecId::from_hash("00000000000000010000000000000002");
  EXPECT_EQ(id.high, 1u);
  EXPECT_EQ(id.low, 2u);
  EXPECT_EQ(SpecId::from_hash("x"), SpecId::from_hash("x"));
  EXPECT_NE(SpecId::from_hash("x"), SpecId::from_hash("y"));
}

TEST(Snapshot, EmptyKnowsNothing) {
  EXPECT_EQ(Snapshot().find(SpecId::from_hash("a"), Pass::kForward, {1, 1, 1, 1, 1}).row, nullptr);
}

TEST(Snapshot, AgreesWithTheStoresRuleOnRandomShapes) {
  std::mt19937 random(3);
  const auto length = [&] { return std::int64_t{1} << random() % 15; };
  const auto shape = [&] {
    return ProblemShape{length() % 33 + 1, 32, std::int64_t{1} << random() % 6, length() + 3,
                        length()};
  };
  std::vector<ProblemWinner> layer;
  for (int i = 0; i < 300; ++i)
    layer.push_back(winner(i % 2 ? "a" : "b", shape(), "plan-" + std::to_string(i)));
  const std::vector<std::vector<ProblemWinner>> layers{layer};
  const Snapshot snapshot(layers);
  std::erase_if(layer, [](const ProblemWinner& w) { return w.spec_hash != "a"; });
  for (int i = 0; i < 500; ++i) {
    const ProblemShape asked =
        i % 3 ? shape() : layer[static_cast<std::size_t>(i) % layer.size()].winner.measured_shape;
    const SnapshotAnswer answer = snapshot.find(SpecId::from_hash("a"), Pass::kForward, asked);
    ASSERT_NE(answer.row, nullptr);
    EXPECT_EQ(answer.row->spec, SpecId::from_hash("a"));
    const double best =
        cache::bucket_distance(cache::nearest(layer, asked)->winner.measured_shape, asked);
    EXPECT_NEAR(cache::bucket_distance(answer.row->shape, asked), best, 1e-4);
    EXPECT_NEAR(answer.distance, best, 1e-4);
  }
}

TEST(Snapshot, FirstLayerAnswersButTheCloserOneGoesFirst) {
  const ProblemShape near{1, 8, 8, 512, 512}, far{1, 8, 8, 4096, 4096};
  const std::vector<std::vector<ProblemWinner>> layers{
      {winner("a", far, "user")}, {winner("a", near, "system"), winner("a", far, "shadowed")}};
  const Snapshot snapshot(layers);
  const auto id = SpecId::from_hash("a");
  EXPECT_EQ(snapshot.find(id, Pass::kForward, far).row->plan, "user");
  EXPECT_EQ(snapshot.find(id, Pass::kForward, near).row->plan, "system");
  EXPECT_EQ(snapshot.find(id, Pass::kForward, near).row->layer, 1);
  EXPECT_EQ(snapshot.find(id, Pass::kForward, {1, 8, 8, 600, 600}).row->plan, "system");
}

TEST(Snapshot, EquallyNearShapesGoByFileAndThenBySize) {
  const ProblemShape small{1, 8, 8, 512, 512}, asked{1, 8, 8, 1024, 1024},
      large{1, 8, 8, 2048, 2048};
  const auto id = SpecId::from_hash("a");
  const std::vector<std::vector<ProblemWinner>> one_file{
      {winner("a", large, "large"), winner("a", small, "small")}};
  EXPECT_EQ(Snapshot(one_file).find(id, Pass::kForward, asked).row->plan, "small");
  const std::vector<std::vector<ProblemWinner>> two_files{{winner("a", large, "user")},
                                                          {winner("a", small, "system")}};
  EXPECT_EQ(Snapshot(two_files).find(id, Pass::kForward, asked).row->plan, "user");
}

TEST(Snapshot, OnePassSaysNothingOfTheOther) {
  const ProblemShape shape{1, 8, 8, 512, 512}, other{1, 8, 8, 1024, 512};
  ProblemWinner backward = winner("a", shape, "backward");
  backward.pass = Pass::kBackward;
  const std::vector<std::vector<ProblemWinner>> layers{{backward, winner("a", other, "forward")}};
  const Snapshot snapshot(layers);
  const auto id = SpecId::from_hash("a");
  for (const ProblemShape& asked : {shape, other}) {
    EXPECT_EQ(snapshot.find(id, Pass::kForward, asked).row->plan, "forward");
    EXPECT_EQ(snapshot.find(id, Pass::kBackward, asked).row->plan, "backward");
  }
  ASSERT_EQ(snapshot.rows_of(id, Pass::kForward).size(), 1u);
  EXPECT_EQ(snapshot.rows_of(id, Pass::kForward)[0].shape, other);
  EXPECT_TRUE(snapshot.rows_of(SpecId::from_hash("b"), Pass::kForward).empty());
  const std::vector<std::vector<ProblemWinner>> one_pass{{backward}};
  EXPECT_EQ(Snapshot(one_pass).find(id, Pass::kForward, shape).row, nullptr);
}

TEST(Snapshot, LookupAllocatesNothing) {
  const std::vector<std::vector<ProblemWinner>> layers{{winner("a", {1, 8, 8, 512, 512}, "p")}};
  SnapshotCell cell;
  cell.replace(std::make_unique<Snapshot>(layers));
  const auto id = SpecId::from_hash("a");
  const long before = allocations_of_this_thread();
  EXPECT_NE(cell.view()->find(id, Pass::kForward, {1, 8, 8, 512, 512}).row, nullptr);
  EXPECT_NE(cell.view()->find(id, Pass::kForward, {1, 8, 8, 513, 512}).row, nullptr);
  EXPECT_EQ(allocations_of_this_thread(), before);
}

TEST(SnapshotCell, ReadersSeeWholeSnapshotsWhileTheyAreReplaced) {
  SnapshotCell cell;
  const auto id = SpecId::from_hash("a");
  const auto put = [&](int generation) {
    std::vector<ProblemWinner> rows;
    for (int i = 1; i <= 20; ++i)
      rows.push_back(winner("a", {1, 1, 1, i, i}, "plan-" + std::to_string(generation)));
    const std::vector<std::vector<ProblemWinner>> layers{rows};
    cell.replace(std::make_unique<Snapshot>(layers));
  };
  put(0);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        const auto view = cell.view();
        const std::string& plan = view->find(id, Pass::kForward, {1, 1, 1, 1, 1}).row->plan;
        for (int i = 2; i <= 20; ++i)
          torn += view->find(id, Pass::kForward, {1, 1, 1, i, i}).row->plan != plan;
      }
    });
  }
  for (int generation = 1; generation <= 300; ++generation) put(generation);
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0);
}

TEST(Overlay, UserFileOverSystemFileOverNothing) {
  TemporaryDirectory directory;
  {
    const auto system = open_store(directory.file("system.db"));
    ASSERT_TRUE((*system)->record(measurement_key(1024), measurement("system", 10)).ok());
    ASSERT_TRUE((*system)->put_code(build_key(7), code(7)).ok());
  }
  Warnings warnings;
  const auto overlay =
      Overlay::open({.user_file = directory.file("user.db"),
                     .system_files = {directory.file("missing.db"), directory.file("system.db")},
                     .store = warnings.options()});
  EXPECT_THAT(warnings.ids, ::testing::ElementsAre("cache-absent"));
  EXPECT_EQ(overlay->find_code(build_key(7)).value()->image, code(7).image);
  EXPECT_EQ(overlay->winner(measurement_key(1024)).value()->plan, "system");

  const auto id = SpecId::from_hash("spec");
  EXPECT_EQ(overlay->snapshot()->find(id, Pass::kForward, measurement_key(1024).shape).row,
            nullptr);
  EXPECT_TRUE(overlay->refresh(kDevice));
  EXPECT_FALSE(overlay->refresh(kDevice));
  EXPECT_EQ(overlay->snapshot()->find(id, Pass::kForward, measurement_key(1024).shape).row->layer,
            2);

  ASSERT_TRUE(overlay->record(measurement_key(1024), measurement("user", 20)).ok());
  EXPECT_TRUE(overlay->refresh(kDevice));
  const auto view = overlay->snapshot();
  const auto* row = view->find(id, Pass::kForward, measurement_key(1024).shape).row;
  EXPECT_EQ(row->plan, "user");
  EXPECT_EQ(overlay->layers()[static_cast<std::size_t>(row->layer)].path,
            directory.file("user.db"));
  EXPECT_FALSE(overlay->layers()[1].usable);
  EXPECT_FALSE(overlay->layers()[1].problem.empty());
}

TEST(Overlay, AFileThatComesLaterOrIsMendedAnswersFromThenOn) {
  TemporaryDirectory directory;
  std::ofstream(directory.file("user.db")) << "no cache at all, but somebody's notes";
  Warnings warnings;
  const auto overlay = Overlay::open({.user_file = directory.file("user.db"),
                                      .system_files = {directory.file("system.db")},
                                      .store = warnings.options()});
  EXPECT_EQ(overlay->put_code(build_key(1), code(1)).error().id, "cache-none");
  EXPECT_TRUE(overlay->refresh(kDevice));
  EXPECT_FALSE(overlay->refresh(kDevice));
  {
    const auto system = open_store(directory.file("system.db"));
    ASSERT_TRUE((*system)->record(measurement_key(1024), measurement("system", 10)).ok());
  }
  std::filesystem::remove(directory.file("user.db"));
  std::filesystem::copy_file(directory.file("system.db"), directory.file("user.db"));
  EXPECT_TRUE(overlay->refresh(kDevice));
  const auto view = overlay->snapshot();
  EXPECT_EQ(view->rows().size(), 2u);
  EXPECT_TRUE(overlay->put_code(build_key(1), code(1)).ok());
  for (const LayerStatus& layer : overlay->layers()) {
    EXPECT_TRUE(layer.usable) << layer.path;
    EXPECT_EQ(layer.problem, "");
  }
  EXPECT_EQ(warnings.ids.size(), 2u) << "each said once";
}

TEST(Overlay, WithoutAUserFileWritesFailAndReadsGoOn) {
  const auto overlay = Overlay::open({});
  EXPECT_FALSE(overlay->find_code(build_key(1)).value().has_value());
  EXPECT_EQ(overlay->put_code(build_key(1), code(1)).error().id, "cache-none");
}

TEST(Overlay, SystemFilesComeFromTheEnvironment) {
  setenv("ATTUNE_SYSTEM_CACHE", "/a.db::/b.db", 1);
  EXPECT_THAT(default_overlay().system_files, ::testing::ElementsAre("/a.db", "/b.db"));
  unsetenv("ATTUNE_SYSTEM_CACHE");
}

}  // namespace
}  // namespace attune
