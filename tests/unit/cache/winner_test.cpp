#include "cache/winner.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "cache/data_distance.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using namespace cache_testing;

MeasuredRow row(const std::string& plan, double median_us, int shared_bytes = 1000,
                const std::string& device = kDevice) {
  MeasuredRow result{"spec", device, "events-cold-l2-2", measurement_key().shape,
                     measurement(plan, median_us)};
  result.measurement.shared_bytes = shared_bytes;
  return result;
}

std::string winning_plan(const std::vector<MeasuredRow>& rows,
                         const std::vector<RejectedRow>& rejected = {}) {
  const auto result = winners(rows, rejected, kDevice);
  return result.empty() ? "" : result.front().winner.plan;
}

TEST(Winner, LowestMedianWins) {
  EXPECT_EQ(winning_plan({row("a", 100), row("b", 90), row("c", 95)}), "b");
}

TEST(Winner, WithinNoiseFewerResourcesWin) {
  EXPECT_EQ(winning_plan({row("a", 100, 2000), row("b", 100.4, 1000)}), "b");
  EXPECT_EQ(winning_plan({row("a", 100, 2000), row("b", 100.6, 1000)}), "a");
  EXPECT_EQ(winning_plan({row("b", 100), row("a", 100)}), "a")
      << "equal in all: the plan's text decides";
}

TEST(Winner, TheNextBestStandBehindItWithTheCulpritsLeftOut) {
  RejectedRow culprit{"spec", kDevice, measurement_key().shape, {}};
  culprit.rejection = {
      .plan = "c", .build_digest = row("c", 1).measurement.build_digest, .reason = "miscompute"};
  const std::vector<RejectedRow> rejected{culprit};
  const std::vector<MeasuredRow> rows{row("a", 100), row("b", 90),  row("c", 91),
                                      row("d", 120), row("e", 110), row("f", 130)};
  const auto result = winners(rows, rejected, kDevice);
  ASSERT_EQ(result.size(), 1u);
  std::vector<std::string> next;
  for (const MeasuredPlan& plan : result.front().winner.runners_up) next.push_back(plan.plan);
  EXPECT_EQ(result.front().winner.plan, "b");
  EXPECT_THAT(next, ::testing::ElementsAre("a", "e", "d", "f"));
}

TEST(Winner, RepeatedMeasurementsCountByTheirMedian) {
  EXPECT_EQ(
      winning_plan({row("lucky", 50), row("lucky", 100), row("lucky", 101), row("steady", 90)}),
      "steady");
}

MeasuredRow final_row(const std::string& plan, double us) {
  MeasuredRow result = row(plan, us);
  result.measurement.samples = 90;
  return result;
}

TEST(Winner, TimesOfAFinalGoBeforeThoseOfTheRacesBeforeIt) {
  // The GPU was slower by then.
  std::vector<MeasuredRow> rows{row("a", 99.5), row("b", 100), row("c", 102), final_row("b", 105),
                                final_row("c", 104)};
  EXPECT_EQ(winning_plan(rows), "c");
  rows.push_back(row("d", 95));  // far faster than any of the final
  EXPECT_EQ(winning_plan(rows), "d");
}

TEST(Winner, TimesBeforeAFinalCountAsTheFinalistsGrewSlower) {
  // By a tenth: more than the best of those that were not in it are faster than its best.
  const std::vector<MeasuredRow> rows{row("a", 100), row("b", 104), row("c", 102),
                                      final_row("a", 110), final_row("b", 114.4)};
  EXPECT_EQ(winning_plan(rows), "a");
  const auto result = winners(rows, {}, kDevice);
  const auto& next = result.front().winner.runners_up;
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(next[0].plan, "c");
  EXPECT_NEAR(next[0].median_us, 112.2, 1e-9);
  EXPECT_EQ(next[1].plan, "b");
  EXPECT_NEAR(next[1].median_us, 114.4, 1e-9);
}

TEST(Winner, LatestBuildOfAPlanStands) {
  auto old_build = row("a", 10);
  old_build.measurement.build_digest = "old";
  old_build.measurement.measured_at = "2025-01-01T00:00:00Z";
  EXPECT_EQ(winning_plan({old_build, row("a", 100), row("b", 90)}), "b");
}

TEST(Winner, EachCompilersLatestBuildOfAPlanStands) {
  const auto by = [](const std::string& compiler, double us, const std::string& when) {
    auto result = row("a", us);
    result.measurement.compiler = compiler;
    result.measurement.build_digest = compiler + when;
    result.measurement.measured_at = when;
    return result;
  };
  const auto winner = [](const std::vector<MeasuredRow>& rows) {
    return winners(rows, {}, kDevice).front().winner;
  };
  EXPECT_EQ(winner({by("nvrtc 13.0", 100, "2"), by("clang 19", 90, "1")}).compiler, "clang 19")
      << "an older time of another compiler's";
  EXPECT_EQ(winner({by("clang 19", 100, "2"), by("clang-list 19", 90, "1")}).compiler,
            "clang-list 19")
      << "LLVM's other order is another compiler";
  EXPECT_EQ(winner({by("nvrtc 13.0", 80, "1"), by("nvrtc 13.1", 100, "2")}).compiler, "nvrtc 13.1");
  EXPECT_EQ(winner({by("nvrtc 13.0", 100, "1"), by("clang 19", 100, "1")}).compiler, "clang 19")
      << "equal in all: the compiler's name decides";
}

TEST(Winner, OwnDriverGoesFirstOthersServe) {
  EXPECT_EQ(winning_plan({row("a", 10, 1000, kOtherDriver), row("b", 20)}), "b");
  const std::vector<MeasuredRow> other{row("a", 10, 1000, kOtherDriver)};
  const auto result = winners(other, {}, kDevice);
  ASSERT_EQ(result.size(), 1u);
  EXPECT_FALSE(result.front().winner.same_driver);
  const std::vector<MeasuredRow> elsewhere{row("a", 10, 1000, "another GPU / driver 1")};
  EXPECT_TRUE(winners(elsewhere, {}, kDevice).empty());
}

TEST(Winner, OrderOfRowsDoesNotMatter) {
  std::vector<MeasuredRow> rows;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(row("p" + std::to_string(i % 9), 100 + (i * 7 % 11) * 0.3, 1000 + i % 4));
  }
  const std::string expected = winning_plan(rows);
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::ranges::shuffle(rows, random);
    EXPECT_EQ(winning_plan(rows), expected);
  }
}

TEST(Bucket, DistanceIsZeroForEqualAndGrowsWithTheLogarithm) {
  const ProblemShape shape{2, 32, 8, 4096, 4096};
  EXPECT_EQ(bucket_distance(shape, shape), 0);
  struct Case {
    ProblemShape other;
    double distance;
  };
  for (const Case& c : {Case{{2, 32, 8, 8192, 4096}, 1}, Case{{2, 32, 8, 4096, 1024}, 4},
                        Case{{4, 32, 8, 4096, 4096}, 0.5}, Case{{1, 64, 16, 4096, 4096}, 0},
                        Case{{2, 32, 32, 4096, 4096}, 1}}) {
    EXPECT_DOUBLE_EQ(bucket_distance(shape, c.other), c.distance) << c.other.kv_len;
    EXPECT_DOUBLE_EQ(bucket_distance(c.other, shape), c.distance);
  }
}

TEST(Bucket, TiesGoToTheSmallerShape) {
  const auto at = [](std::int64_t kv_len) {
    ProblemWinner winner{"spec",
                         {.plan = std::to_string(kv_len), .measured_shape = {1, 1, 1, 1, kv_len}}};
    return winner;
  };
  std::vector<ProblemWinner> two{at(64), at(16)};
  EXPECT_EQ(nearest(two, {1, 1, 1, 1, 32})->winner.plan, "16");
  EXPECT_EQ(nearest({}, {}), nullptr);
  // A quarter of the keys and of the live tiles each count 4; the very shape goes before another.
  two[0].winner.by_data = {{.data = {.live = 0.8, .full = 0.4}}};
  two[1].winner.by_data = {{.data = {.live = 0.2, .full = 0.4}}};
  EXPECT_EQ(nearest(two, {1, 1, 1, 1, 16}, {.live = 0.8, .full = 0.4})->winner.plan, "16");
  EXPECT_EQ(nearest(two, {1, 1, 1, 1, 16}, {.live = 0.2, .full = 0.4})->winner.plan, "16");
  EXPECT_EQ(nearest(two, {1, 1, 1, 1, 16}, {.live = 1, .full = 0.4})->winner.plan, "64");
  EXPECT_EQ(nearest(two, {1, 1, 1, 1, 64}, {.live = 0.1, .full = 0.4})->winner.plan, "16");
}

// Two kinds of data, on which the plans stand differently.
std::vector<MeasuredRow> two_kinds() {
  std::vector<MeasuredRow> rows;
  const auto add = [&](const MaskData& data,
                       std::initializer_list<std::pair<const char*, double>> times) {
    for (const auto& [plan, us] : times) {
      rows.push_back(row(plan, us));
      rows.back().data = data;
    }
  };
  add({.label = "t0=many", .live = 0.1, .full = 0.05}, {{"a", 10}, {"b", 20}, {"c", 12}});
  add({.label = "t0=few", .live = 0.8, .full = 0.6}, {{"a", 100}, {"b", 50}, {"c", 56}, {"d", 40}});
  return rows;
}

TEST(WinnerOfSeveralKinds, LosesLeastOnTheWorst) {
  const auto result = winners(two_kinds(), {}, kDevice);
  ASSERT_EQ(result.size(), 1u);
  // a loses 2.5, b 2, c 1.4; d was not measured on both.
  EXPECT_EQ(result.front().winner.plan, "c");
  ASSERT_EQ(result.front().winner.runners_up.size(), 2u);
  EXPECT_EQ(result.front().winner.runners_up.front().plan, "b");
  std::vector<MeasuredRow> turned = two_kinds();
  std::ranges::reverse(turned);
  EXPECT_EQ(winning_plan(turned), "c");
}

TEST(WinnerOfSeveralKinds, IsTheNearestKindsWhereDataIsKnown) {
  const Winner winner = winners(two_kinds(), {}, kDevice).front().winner;
  EXPECT_EQ(on_data(winner, {}).plan, "c");
  EXPECT_EQ(on_data(winner, {.label = "t0=many"}).plan, "a");
  EXPECT_EQ(on_data(winner, {.label = "t0=few"}).plan, "d");
  EXPECT_EQ(on_data(winner, {.label = "t0=other"}).plan, "c");
  EXPECT_EQ(on_data(winner, {.label = "t0=other", .live = 0.12, .full = 0}).plan, "a");
  EXPECT_EQ(on_data(winner, {.live = 0.7, .full = 0.7}).plan, "d");
}

// A description stands for its variations too, if what wins there was measured on all of them.
TEST(WinnerOfSeveralKinds, OfADescriptionLosesLeastOnItsVariations) {
  std::vector<MeasuredRow> rows = two_kinds();
  for (MeasuredRow& one : rows) {
    if (one.data.label == "t0=few") one.data.label = "t0=many ~ t0=few";
  }
  const Winner winner = winners(rows, {}, kDevice).front().winner;
  const Winner described = on_data(winner, {.label = "t0=many"});
  EXPECT_EQ(described.plan, "c");
  EXPECT_EQ(described.median_us, 12);  // its own time there
  EXPECT_EQ(on_data(winner, {.label = "t0=many ~ t0=few"}).plan, "d");
}

// Launches bring tensors of none of the kinds that were measured: what is slower than the model's
// first guess on one of them may be so there, too.
TEST(WinnerOfSeveralKinds, TheFirstGuessKeepsItsPlaceUnlessBeatenOnAllKinds) {
  const auto winner_of = [](double guess_on_many, double guess_on_few) {
    std::vector<MeasuredRow> rows;
    const auto add = [&](const char* plan, double us, const char* label, double live) {
      rows.push_back(row(plan, us));
      rows.back().data = {.label = label, .live = live, .full = live};
    };
    add("guess", guess_on_many, "t0=many", 0.1);
    add("guess", guess_on_few, "t0=many ~ t0=few", 0.9);
    add("other", 10, "t0=many", 0.1);
    add("other", 10, "t0=many ~ t0=few", 0.9);
    add("guess", 1, "t0=many ~ first guess", -1);
    const Winner winner = winners(rows, {}, kDevice).front().winner;
    EXPECT_THAT(winner.by_data, testing::SizeIs(2));
    return on_data(winner, {.label = "t0=many"}).plan;
  };
  EXPECT_EQ(winner_of(11, 11), "other");
  EXPECT_EQ(winner_of(11, 10), "other");
  EXPECT_EQ(winner_of(11, 9.9), "other") << "within noise";
  EXPECT_EQ(winner_of(20, 9.8), "guess");
  EXPECT_EQ(winner_of(10.08, 10.08), "guess") << "within noise";
}

TEST(WinnerOfSeveralKinds, OfEqualWorstLossesTheFirstGuessWins) {
  std::vector<MeasuredRow> rows = two_kinds();
  const std::string best = winners(rows, {}, kDevice).front().winner.plan;
  for (const MeasuredRow& one : two_kinds()) {
    if (one.measurement.plan != best) continue;
    rows.push_back(one);
    rows.back().measurement.plan = rows.back().measurement.build_digest = "zz guess";
  }
  EXPECT_EQ(winners(rows, {}, kDevice).front().winner.plan, best);
  rows.push_back(row("zz guess", 1));
  rows.back().data = {.label = std::string(kFirstGuessKind)};
  EXPECT_EQ(winners(rows, {}, kDevice).front().winner.plan, "zz guess");
}

// Two tunings on lengths of one class, which differ in their numbers and so in their times.
TEST(WinnerOfSeveralKinds, OfOneClassLosesLeastOnAllOfIt) {
  std::vector<MeasuredRow> rows = two_kinds();
  const LengthClass alike{.longest = 1, .filled = 1}, skewed{.longest = 8, .filled = 1};
  for (MeasuredRow& one : rows) one.data = {.label = one.data.label, .lengths = alike};
  rows.push_back(row("d", 5));
  rows.back().data = {.label = "lengths=given 1", .lengths = skewed};
  const Winner winner = winners(rows, {}, kDevice).front().winner;
  EXPECT_EQ(on_data(winner, {.lengths = alike}).plan, "c");
  EXPECT_EQ(on_data(winner, {.label = "t0=many", .lengths = alike}).plan, "a");
  EXPECT_EQ(on_data(winner, {.lengths = skewed}).plan, "d");
  EXPECT_EQ(on_data(winner, {.lengths = {.longest = 4, .filled = 1}}).plan, "d");
}

TEST(LengthClass, DistancesGrowWithTheLogarithm) {
  const LengthClass equal{.longest = 1, .filled = 1, .page_size = 16};
  LengthClass other = equal;
  EXPECT_EQ(length_distance(equal, other), 0);
  other.longest = 4;
  EXPECT_EQ(length_distance(equal, other), 2);
  other.filled = 0.5;
  EXPECT_EQ(length_distance(equal, other), 3);
  other.page_size = 64;
  EXPECT_EQ(length_distance(equal, other), 3.5);
  EXPECT_EQ(length_distance(equal, {}), 0) << "of which nothing is known";
  EXPECT_EQ(length_distance({}, equal), 1);
}

TEST(Bucket, LengthsThatArePeculiarGoBeforeANearerShape) {
  const auto at = [](std::int64_t batch, double longest) {
    return ProblemWinner{"spec",
                         {.plan = std::to_string(batch),
                          .measured_shape = {batch, 1, 1, batch, 8192},
                          .by_data = {{.data = {.lengths = {.longest = longest, .filled = 1}}}}}};
  };
  const std::vector<ProblemWinner> two{at(16, 1), at(32, 8)};
  const ProblemShape shape{16, 1, 1, 16, 8192};
  EXPECT_EQ(nearest(two, shape)->winner.plan, "16");
  EXPECT_EQ(nearest(two, shape, {.lengths = {.longest = 1, .filled = 1}})->winner.plan, "16");
  EXPECT_EQ(nearest(two, shape, {.lengths = {.longest = 8, .filled = 1}})->winner.plan, "32");
}

TEST(WinnerOfSeveralKinds, OfPlansThatWereNotMeasuredOnAllTakesTheKindOfMost) {
  std::vector<MeasuredRow> rows = two_kinds();
  std::erase_if(rows, [](const MeasuredRow& one) {
    return one.data.live < 0.5 && one.measurement.plan != "a";
  });
  std::erase_if(rows, [](const MeasuredRow& one) {
    return one.data.live > 0.5 && one.measurement.plan == "a";
  });
  EXPECT_EQ(winning_plan(rows), "d");
}

}  // namespace
}  // namespace attune::cache
