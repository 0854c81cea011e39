#include "tuner/search/search.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "generator/plan/distance.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/tuner/fake_executor.hpp"
#include "tuner/search/seeds.hpp"

namespace attune {
namespace {

using namespace tuner_testing;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// All of a space of 4 x 4 x 3 x 2 x 2 x 2, in an order that knows nothing of the times.
std::vector<KernelPlan> whole_space() {
  std::vector<KernelPlan> plans;
  for (int tile_q : {32, 64, 128, 256}) {
    for (int tile_kv : {32, 64, 96, 128}) {
      for (int stages : {1, 2, 3}) {
        for (int warps : {4, 8}) {
          for (bool q_in_registers : {false, true}) {
            for (bool frozen : {false, true})
              plans.push_back(sm80_plan(tile_q, tile_kv, stages, warps, q_in_registers, frozen));
          }
        }
      }
    }
  }
  return plans;
}

// Best at q128 k96 s3 w8, q in registers; smooth towards it, as real spaces roughly are.
double smooth_time(const KernelPlan& plan) {
  const auto& p = std::get<Sm80Plan>(plan.tile);
  const auto off = [](double value, double best) { return std::abs(std::log2(value / best)); };
  return 100 * (1 + 0.3 * off(p.tile_q, 128) + 0.2 * off(p.tile_kv, 96) + 0.1 * (3 - p.stages) +
                0.15 * off(p.warps, 8) + 0.04 * !p.q_in_registers + 0.05 * !p.frozen_max);
}
const KernelPlan kBest = sm80_plan(128, 96, 3, 8, true, true);

struct Bench {
  explicit Bench(std::function<Behaviour(const KernelPlan&)> behaviour)
      : executor(std::move(behaviour)), store(std::move(*open_store(directory.file()))) {}

  Result<TuneResult> run(
      TuneOptions options = {}, const TuneObserver& observer = [](const auto&) { return true; }) {
    options.compile_threads = 1;
    const SearchProblem problem{.key = cache_testing::measurement_key(),
                                .plans = plans,
                                .compilers = compilers,
                                .compile_while_measuring = compile_while_measuring};
    return search(problem, executor, *store, options, executor.clock(), observer);
  }
  // The same store, another process.
  void restart(std::function<Behaviour(const KernelPlan&)> behaviour) {
    std::destroy_at(&executor);
    std::construct_at(&executor, std::move(behaviour));
  }

  cache_testing::TemporaryDirectory directory;
  FakeExecutor executor;
  std::unique_ptr<Store> store;
  std::vector<KernelPlan> plans = whole_space();
  int compilers = 1;
  bool compile_while_measuring = true;
};

Behaviour smooth(const KernelPlan& plan) { return {.time_us = smooth_time(plan), .noise = 0.003}; }

TEST(Search, FindsTheBestOfASmoothSpaceWithFewCandidates) {
  Bench bench(smooth);
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_LE(smooth_time(result->plan), 1.02 * smooth_time(kBest)) << to_string(result->plan);
  EXPECT_LT(result->candidates, static_cast<int>(bench.plans.size()) / 2);
  EXPECT_EQ(result->candidates, result->measured);
  EXPECT_FALSE(result->stopped);
}

// The model's order begins with many that differ in little: one of them stands for the others.
TEST(Search, FirstGuessesDifferInMuch) {
  Bench bench(smooth);
  std::ranges::sort(bench.plans, {}, smooth_time);
  ASSERT_TRUE(bench.run({.max_candidates = 6}).ok());
  std::vector<KernelPlan> seeds;
  for (const auto& [candidate, times] : bench.executor.compiles) {
    for (const KernelPlan& other : seeds) EXPECT_GE(plan_distance(candidate.plan, other), 3);
    seeds.push_back(candidate.plan);
  }
  EXPECT_THAT(seeds, SizeIs(6));
  EXPECT_THAT(seeds, ::testing::Contains(bench.plans.front()));
}

// Half of whole_space().
std::vector<KernelPlan> small_space() {
  std::vector<KernelPlan> plans = whole_space();
  std::erase_if(plans,
                [](const KernelPlan& plan) { return !std::get<Sm80Plan>(plan.tile).frozen_max; });
  return plans;
}

TEST(Search, AsksForAWaveOfASmallSpaceWhereTheModelIsRightAndCompilesItAtOnce) {
  Bench bench(smooth);
  bench.plans = small_space();
  std::ranges::sort(bench.plans, {}, smooth_time);
  bench.executor.awaited = search_bound(bench.plans.size());
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->plan, kBest);
  EXPECT_EQ(search_bound(bench.plans.size()), 16);
  EXPECT_EQ(result->candidates, 16);
  EXPECT_THAT(bench.executor.compiles, SizeIs(16)) << "none in vain";
}

TEST(Search, AsksForMoreOfASmallSpaceWhereTheModelIsWrong) {
  Bench bench(smooth);
  bench.plans = small_space();
  std::ranges::sort(bench.plans, {}, smooth_time);
  std::ranges::rotate(bench.plans, bench.plans.begin() + 24);  // the best are its last
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_LE(smooth_time(result->plan), 1.02 * smooth_time(kBest)) << to_string(result->plan);
  EXPECT_GT(result->candidates, 16);
}

TEST(Search, ExhaustiveAsksForAllAndCompilesAWaveAhead) {
  Bench bench(smooth);
  bench.executor.awaited = 76;  // the first guesses and as many as a wave takes
  const auto result = bench.run({.exhaustive = true});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->plan, kBest);
  EXPECT_EQ(result->candidates, static_cast<int>(bench.plans.size()));
}

TEST(Search, CompilesNothingInVainWhereThatWouldDisturbTheClock) {
  Bench bench(smooth);
  bench.compile_while_measuring = false;
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(bench.executor.compiles, SizeIs(result->candidates));
}

TEST(Search, HonoursTheMostCandidates) {
  Bench bench(smooth);
  EXPECT_EQ(bench.run({.max_candidates = 7})->candidates, 7);
}

TEST(Search, SecondRunFindsEverythingDone) {
  Bench bench(smooth);
  const auto first = bench.run();
  bench.restart(smooth);
  const auto second = bench.run();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->plan, first->plan);
  EXPECT_EQ(second->from_cache, second->candidates);
  EXPECT_EQ(bench.executor.prepared, 0) << "nothing is to be measured";
  EXPECT_THAT(bench.executor.compiles, IsEmpty());
}

// The second compiler's code of every plan is so much slower (or faster).
auto second_compiler(double factor) {
  return [factor](const Candidate&, Behaviour& behaviour) { behaviour.time_us *= factor; };
}
int compiled_by(const FakeExecutor& executor, int compiler) {
  int count = 0;
  for (const auto& [candidate, times] : executor.compiles)
    count += candidate.compiler == compiler ? times : 0;
  return count;
}

TEST(Search, TheOtherCompilerBuildsTheFinalistsAndTheFasterCodeWins) {
  struct Case {
    double factor;
    std::string winner;
  };
  for (const Case& c : {Case{0.95, "second 2.0"}, Case{1.05, "first 1.0"}}) {
    Bench bench(smooth);
    bench.compilers = 2;
    bench.executor.of_other_compiler = second_compiler(c.factor);
    const auto result = bench.run();
    ASSERT_TRUE(result.ok());
    EXPECT_LE(smooth_time(result->plan), 1.02 * smooth_time(kBest));
    EXPECT_EQ(result->compiler, c.winner);
    EXPECT_EQ(result->candidates, result->measured);
    EXPECT_GE(compiled_by(bench.executor, 1), 1);
    EXPECT_LE(compiled_by(bench.executor, 1), 4) << "finalists only";
    const auto winner = bench.store->winner(cache_testing::measurement_key()).value();
    ASSERT_TRUE(winner.has_value());
    EXPECT_EQ(winner->compiler, c.winner);
    EXPECT_EQ(winner->plan, to_string(result->plan));
  }
}

TEST(Search, AnotherCompilersCodeIsRacedEvenWhenOnePlanStandsOut) {
  Bench bench(smooth);
  bench.plans = {kBest};
  bench.compilers = 2;
  bench.executor.of_other_compiler = second_compiler(0.9);
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->compiler, "second 2.0");
  EXPECT_EQ(bench.executor.timings.at(Candidate(kBest, 1)), 90) << "a final's rounds";
}

TEST(Search, WhatTheOtherCompilerCannotBuildOrMiscompilesIsNotedAndTheFirstWins) {
  for (const auto& [stage, reason] :
       {std::pair("compile", "compile"), std::pair("verify", "miscompute")}) {
    Bench bench(smooth);
    bench.compilers = 2;
    bench.executor.of_other_compiler = [&](const Candidate&, Behaviour& behaviour) {
      behaviour = {.time_us = 1, .fails_at = stage, .reason = reason};
    };
    const auto result = bench.run();
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->compiler, "first 1.0");
    EXPECT_GE(result->rejected, 1);
    EXPECT_EQ(result->candidates, result->measured + result->rejected);
    const auto rejections = bench.store->rejections(cache_testing::measurement_key()).value();
    EXPECT_EQ(static_cast<int>(rejections.size()), result->rejected);
    for (const Rejection& rejection : rejections) EXPECT_EQ(rejection.reason, reason);
  }
}

TEST(Search, ASecondRunKnowsWhatBothCompilersMade) {
  Bench bench(smooth);
  bench.compilers = 2;
  bench.executor.of_other_compiler = second_compiler(0.95);
  const auto first = bench.run();
  bench.restart(smooth);
  const auto second = bench.run();
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->plan, first->plan);
  EXPECT_EQ(second->compiler, "second 2.0");
  EXPECT_EQ(second->from_cache, second->candidates);
  EXPECT_THAT(bench.executor.compiles, IsEmpty());
}

TEST(Search, ASecondCompilerThatComesLaterIsTriedOnTheFinalists) {
  Bench bench(smooth);
  ASSERT_TRUE(bench.run().ok());
  bench.restart(smooth);
  bench.compilers = 2;
  bench.executor.of_other_compiler = second_compiler(0.95);
  const auto result = bench.run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->compiler, "second 2.0");
  EXPECT_LE(result->measured, 4);
}

TEST(Search, ForceMeasuresAgain) {
  Bench bench(smooth);
  ASSERT_TRUE(bench.run({.max_candidates = 5}).ok());
  bench.restart(smooth);
  EXPECT_EQ(bench.run({.max_candidates = 5, .force = true})->measured, 5);
}

TEST(Search, StoppedAnywhereItGoesOnWithNothingLostOrRepeated) {
  for (int stop_after = 1; stop_after < 400; stop_after += 37) {
    Bench bench(smooth);
    int reports = 0;
    (void)bench.run({}, [&](const TuneProgress&) { return ++reports < stop_after; });
    const auto before = bench.store->measurements(cache_testing::measurement_key()).value();
    bench.restart(smooth);
    const auto resumed = bench.run();
    ASSERT_TRUE(resumed.ok());
    EXPECT_LE(smooth_time(resumed->plan), 1.02 * smooth_time(kBest));
    std::set<std::string> measured_before;
    for (const Measurement& m : before) measured_before.insert(m.plan);
    int again = 0;
    for (const auto& [candidate, times] : bench.executor.timings)
      again += measured_before.contains(to_string(candidate.plan));
    EXPECT_LE(again, 4) << "only finalists run twice";
  }
}

TEST(Search, CulpritsAreKeptWithTheirReasonAndNeverTriedAgain) {
  const auto planted = [](const KernelPlan& plan) {
    Behaviour behaviour = smooth(plan);
    const auto& p = std::get<Sm80Plan>(plan.tile);
    if (p.stages == 1) behaviour.fails_at = "compile", behaviour.reason = "compile";
    if (p.stages == 2 && p.warps == 4)
      behaviour.fails_at = "verify", behaviour.reason = "miscompute";
    if (p.stages == 2 && p.warps == 8) behaviour.fails_at = "time", behaviour.reason = "hang";
    if (p.tile_q == 256) behaviour.fails_at = "verify", behaviour.reason = "fault";
    return behaviour;
  };
  Bench bench(planted);
  const auto result = bench.run({.exhaustive = true});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->plan, kBest);
  EXPECT_EQ(result->measured, 96);
  EXPECT_EQ(result->rejected, 288);
  std::map<std::string, int> reasons;
  const std::vector<Rejection> rejections =
      bench.store->rejections(cache_testing::measurement_key()).value();
  for (const Rejection& r : rejections) ++reasons[r.reason];
  EXPECT_EQ(reasons["fault"], 96);
  EXPECT_EQ(reasons["compile"], 96);
  EXPECT_EQ(reasons["miscompute"], 48);
  EXPECT_EQ(reasons["hang"], 48);

  bench.restart(planted);
  EXPECT_EQ(bench.run({.force = true, .exhaustive = true})->rejected, 288);
  for (const auto& [candidate, count] : bench.executor.compiles)
    EXPECT_TRUE(planted(candidate.plan).fails_at.empty());
}

// The best faults when it runs along with the second wave: one more of the first becomes a
// finalist, which was released when six others were kept.
TEST(Search, AReleasedCandidateCanStillBecomeAFinalist) {
  std::vector<KernelPlan> plans;
  for (int tile_q : {16, 32, 64, 128, 256}) {
    for (int tile_kv : {32, 64, 96, 128}) plans.push_back(sm80_plan(tile_q, tile_kv, 2, 4));
  }
  const std::vector<KernelPlan> first_wave = search_seeds(plans, 8);
  Bench* bench = nullptr;
  const auto behaviour = [&](const KernelPlan& plan) {
    const auto place = std::ranges::find(first_wave, plan) - first_wave.begin();
    Behaviour planned{.time_us = 100 + 0.1 * static_cast<double>(place)};
    if (place == 0 && bench != nullptr && bench->executor.timings[plan] == 30)
      planned.fails_at = "time", planned.reason = "fault";
    return planned;
  };
  Bench made(behaviour);
  bench = &made;
  made.plans = plans;
  const auto result = made.run();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->rejected, 1);
  EXPECT_EQ(made.executor.compiles[first_wave[6]], 2);
}

TEST(Search, WithinNoiseTheSmallerWins) {
  const KernelPlan small = sm80_plan(64, 64, 2, 4);
  const KernelPlan large = sm80_plan(128, 64, 2, 4);
  Bench bench([&](const KernelPlan& plan) {
    return Behaviour{.time_us = plan == small ? 100.4 : 100,
                     .noise = 0.001,
                     .shared_bytes = plan == small ? 500 : 900};
  });
  bench.plans = {large, small};
  EXPECT_EQ(bench.run()->plan, small);
}

// The GPU got warmer, and one of the two minds more.
TEST(Search, TheFinalDecidesNotTheRaceBeforeIt) {
  const KernelPlan steady = sm80_plan(64, 64, 2, 4);
  const KernelPlan fading = sm80_plan(128, 64, 2, 4);
  Bench* bench = nullptr;
  const auto behaviour = [&](const KernelPlan& plan) {
    const bool first_race = bench == nullptr || bench->executor.timings[plan] < 30;
    return Behaviour{.time_us = plan == steady ? 100.0 : first_race ? 97.0 : 102.0};
  };
  Bench made(behaviour);
  bench = &made;
  made.plans = {fading, steady};
  EXPECT_EQ(made.run()->plan, steady);
}

// Contenders that a choice goes by have as many rounds as the best.
TEST(Search, ToTheEndAllAreInTheFinal) {
  Bench bench(smooth);
  const std::vector<KernelPlan> few = {kBest, bench.plans[0], bench.plans[100], bench.plans[200]};
  ASSERT_TRUE(bench.run({.max_candidates = 4, .contenders = few, .to_the_end = true}).ok());
  for (const KernelPlan& plan : few) EXPECT_EQ(bench.executor.timings.at(plan), 120);
}

// The GPU is a tenth slower from the second wave on, in which plans are that much faster.
TEST(Search, AGpuThatGrowsWarmHidesNoGain) {
  Bench* bench = nullptr;
  std::size_t first_wave = 0;
  const auto warming = [&](const KernelPlan& plan) {
    const bool is_second = bench->executor.compiles.size() > kSearchSeeds + 4;
    if (first_wave == 0 && is_second) first_wave = bench->executor.order.size();
    const bool is_warm = first_wave > 0 && bench->executor.order.size() > first_wave;
    Behaviour behaviour = smooth(plan);
    behaviour.time_us *= is_warm ? 1.1 : 1;
    return behaviour;
  };
  Bench made(warming);
  bench = &made;
  made.compile_while_measuring = false;
  const auto result = made.run();
  ASSERT_TRUE(result.ok());
  EXPECT_LE(smooth_time(result->plan), 1.02 * smooth_time(kBest)) << to_string(result->plan);
}

TEST(Search, MachinesFailureIsItsErrorAndKeepsWhatWasMeasured) {
  Bench bench(smooth);
  bench.executor.machine_fails_after = 200;
  const auto result = bench.run();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().id, "device-lost");
  EXPECT_THAT(bench.store->measurements(cache_testing::measurement_key()).value(),
              ::testing::Not(IsEmpty()));
}

TEST(Search, WhatTheStoreDoesNotTakeIsStoredAtTheEndOrSaid) {
  for (const bool for_good : {false, true}) {
    Bench bench(smooth);
    const auto key = cache_testing::measurement_key();
    bench.store = std::move(*open_store(bench.directory.file(), {.busy_timeout_ms = 1}));
    SQLite::Database other(bench.directory.file(), SQLite::OPEN_READWRITE);
    other.exec("BEGIN EXCLUSIVE");
    int reports = 0;
    const auto result = bench.run({.max_candidates = 20}, [&](const TuneProgress&) {
      if (++reports == 60 && !for_good) other.exec("COMMIT");
      return true;
    });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->measured, 20);
    EXPECT_GT(reports, 60);
    ASSERT_EQ(result->not_stored.has_value(), for_good);
    if (for_good) {
      EXPECT_EQ(result->not_stored->id, "cache-locked");
    } else {
      const auto rows = bench.store->measurements(key).value();
      std::set<std::string> plans;
      for (const Measurement& m : rows) plans.insert(m.plan);
      EXPECT_THAT(plans, SizeIs(20));
    }
  }
}

TEST(Search, TheOtherCompilersFasterCodeWinsWhereTheStoreTakesNothing) {
  Bench bench(smooth);
  bench.compilers = 2;
  bench.executor.of_other_compiler = second_compiler(0.95);
  bench.store = std::move(*open_store(bench.directory.file(), {.busy_timeout_ms = 1}));
  SQLite::Database other(bench.directory.file(), SQLite::OPEN_READWRITE);
  other.exec("BEGIN EXCLUSIVE");
  const auto result = bench.run({.max_candidates = 20});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->compiler, "second 2.0");
}

TEST(Search, NoPlanThatWorksIsAnError) {
  Bench bench(
      [](const KernelPlan&) { return Behaviour{.fails_at = "compile", .reason = "compile"}; });
  bench.plans.resize(3);
  EXPECT_EQ(bench.run().error().id, "tune-no-plan");
  EXPECT_EQ(bench.run({}, [](const auto&) { return false; }).error().id, "tune-stopped");
}

TEST(Search, ProgressEndsDoneAndItsBestNeverGetsSlower) {
  Bench bench([](const KernelPlan& plan) { return Behaviour{.time_us = smooth_time(plan)}; });
  double best = INFINITY;
  TuneProgress last;
  bool eta_seen = false;
  ASSERT_TRUE(bench
                  .run({},
                       [&](const TuneProgress& p) {
                         EXPECT_LE(p.done, p.total);
                         if (p.best_us > 0) {
                           EXPECT_LE(p.best_us, best * 1.01);
                           best = p.best_us;
                         }
                         eta_seen = eta_seen || p.eta_seconds > 0;
                         last = p;
                         return true;
                       })
                  .ok());
  EXPECT_EQ(last.state, TuneState::kDone);
  EXPECT_EQ(last.done, last.total);
  EXPECT_EQ(last.eta_seconds, 0);
  EXPECT_TRUE(eta_seen);
}

TEST(PlanDistance, CountsPartsThatDiffer) {
  EXPECT_EQ(plan_distance(kBest, kBest), 0);
  EXPECT_EQ(plan_distance(kBest, sm80_plan(64, 96, 3, 8, true, true)), 1);
  EXPECT_EQ(plan_distance(kBest, sm80_plan(128, 96, 3, 8, false, true)), 1) << "a flag is one part";
  EXPECT_EQ(plan_distance(kBest, sm80_plan(64, 96, 2, 8, false, true)), 3);
  const KernelPlan other{.target = Target::kCpu, .tile = CpuPlan{}};
  EXPECT_EQ(plan_distance(kBest, other), INT_MAX);
  Sm90aPlan tile{.tile_kv = 112};
  const KernelPlan narrow{.target = Target::kSm90a, .tile = tile};
  tile.tile_kv = 128;
  tile.p_in_shared = true;
  const KernelPlan wide{.target = Target::kSm90a, .tile = tile};
  EXPECT_EQ(plan_distance(narrow, wide), 1) << "P is in shared memory for the tile's sake";
}

}  // namespace
}  // namespace attune
