#include "tuner/sweep/sweep.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>

#include "generator/support/hash.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/unit/tuner/fake_executor.hpp"
#include "tests/unit/tuner/lock_holder.hpp"
#include "tuner/sweep/files.hpp"
#include "tuner/sweep/shard_lock.hpp"

namespace attune {
namespace {

using namespace tuner_testing;
using ::testing::SizeIs;

Manifest manifest_of(int problems) {
  std::vector<SweepProblem> all;
  for (int i = 0; i < problems; ++i) {
    all.push_back({.spec_source = "causal.yaml",
                   .spec_yaml = "attune: 1\n",
                   .shape = {.q_len = i + 1, .kv_len = i + 1}});
  }
  return make_manifest(all);
}

// Records one measurement a problem; counts who tuned what.
struct FakeTuner {
  SweepTuner function() {
    return [this](const SweepProblem& problem, int device, Store& store,
                  const TuneObserver& observer) -> Result<TuneResult> {
      {
        const std::lock_guard lock(mutex);
        ++tuned[problem.shape.q_len];
        devices.insert(device);
      }
      if (fails.contains(problem.shape.q_len))
        return Error{.id = "tune-no-plan", .message = "planted"};
      auto key = cache_testing::measurement_key();
      key.shape = problem.shape;
      EXPECT_TRUE(store
                      .record(key, cache_testing::measurement(
                                       "p", static_cast<double>(problem.shape.q_len)))
                      .ok());
      TuneResult result{.plan = sm80_plan(128, 64, 2, 4),
                        .median_us = static_cast<double>(problem.shape.q_len),
                        .measured = 1};
      result.stopped = !observer({.best_us = 1});
      if (unstored.contains(problem.shape.q_len))
        result.not_stored = Error{.id = "cache-full", .message = "planted"};
      return result;
    };
  }
  std::mutex mutex;
  std::map<std::int64_t, int> tuned;
  std::set<std::int64_t> fails, unstored;
  std::set<int> devices;
};

const SweepObserver kGoOn = [](const SweepProgress&) { return true; };

TEST(Manifest, RoundTripsAndIsHashedByContent) {
  cache_testing::TemporaryDirectory directory;
  const Manifest manifest = manifest_of(3);
  ASSERT_TRUE(write_manifest(manifest, directory.file("sweep")).ok());
  EXPECT_EQ(read_manifest(directory.file("sweep"))->hash(), manifest.hash());
  EXPECT_TRUE(write_manifest(manifest, directory.file("sweep")).ok()) << "the same again";
  EXPECT_EQ(write_manifest(manifest_of(4), directory.file("sweep")).error().id,
            "sweep-other-manifest");
  EXPECT_EQ(read_manifest(directory.file("none")).error().id, "sweep-no-manifest");
  const std::string path = sweep_files::manifest(directory.file("sweep"));
  std::ifstream input(path);
  std::string text((std::istreambuf_iterator<char>(input)), {});
  text.replace(text.find("q_len=2"), 7, "q_len=9");
  std::ofstream(path) << text;
  EXPECT_EQ(read_manifest(directory.file("sweep")).error().id, "sweep-bad-manifest");
  std::ofstream(path) << "{";
  EXPECT_EQ(read_manifest(directory.file("sweep")).error().id, "sweep-bad-manifest");
}

// Journals and manifests of versions that had one pass stay good.
TEST(Manifest, TheForwardPassIsWhatHadNoName) {
  cache_testing::TemporaryDirectory directory;
  SweepProblem problem{
      .spec_source = "causal.yaml", .spec_yaml = "attune: 1\n", .shape = {.q_len = 5, .kv_len = 5}};
  EXPECT_EQ(problem.digest(),
            hash128_hex("10:attune: 1\nbatch=1,heads=1,kv_heads=1,q_len=5,kv_len=5"));
  SweepProblem backward = problem;
  backward.pass = Pass::kBackward;
  EXPECT_NE(backward.digest(), problem.digest());
  const Manifest manifest = make_manifest({problem, backward});
  ASSERT_THAT(manifest.problems, SizeIs(2));
  ASSERT_TRUE(write_manifest(manifest, directory.file("sweep")).ok());
  const auto read = read_manifest(directory.file("sweep"));
  ASSERT_TRUE(read.ok()) << render(read.error());
  EXPECT_EQ(read->problems[0].pass, Pass::kForward);
  EXPECT_EQ(read->problems[1].pass, Pass::kBackward);

  const std::string path = sweep_files::manifest(directory.file("sweep"));
  std::ifstream input(path);
  std::string text((std::istreambuf_iterator<char>(input)), {});
  const std::string key = "   \"pass\": \"forward\",\n";
  ASSERT_NE(text.find(key), std::string::npos) << text;
  text.erase(text.find(key), key.size());
  std::ofstream(path) << text;
  const auto without = read_manifest(directory.file("sweep"));
  ASSERT_TRUE(without.ok()) << render(without.error());
  EXPECT_EQ(without->problems[0].pass, Pass::kForward);
}

TEST(Manifest, SequencesThatAreNamedAreOfTheProblem) {
  cache_testing::TemporaryDirectory directory;
  SweepProblem problem{
      .spec_source = "paged.yaml", .spec_yaml = "attune: 1\n", .shape = {.q_len = 5, .kv_len = 5}};
  SweepProblem named = problem;
  named.sequences = {.lengths = "skewed(longest=0.5)", .page_size = 64, .shared_prefix = 0};
  EXPECT_NE(named.digest(), problem.digest());
  ASSERT_TRUE(write_manifest(make_manifest({problem, named}), directory.file("sweep")).ok());
  const auto read = read_manifest(directory.file("sweep"));
  ASSERT_TRUE(read.ok()) << render(read.error());
  EXPECT_EQ(read->problems[0].sequences, std::nullopt);
  EXPECT_EQ(read->problems[1].sequences, named.sequences);
}

TEST(Manifest, LeavesRepeatedProblemsOut) {
  auto problems = manifest_of(3).problems;
  problems.push_back(problems[1]);
  EXPECT_THAT(make_manifest(problems).problems, SizeIs(3));
}

TEST(Shard, TextAndParts) {
  EXPECT_EQ(*parse_shard("2/8"), (Shard{1, 8}));
  EXPECT_EQ(to_string(Shard{1, 8}), "2/8");
  for (const char* bad : {"", "1", "0/4", "5/4", "1/0", "a/b", "1/4x", "-1/4"})
    EXPECT_FALSE(parse_shard(bad).ok()) << bad;
  std::set<std::size_t> seen;
  for (int i = 0; i < 3; ++i) {
    for (const std::size_t index : problems_of(manifest_of(10), {i, 3}))
      EXPECT_TRUE(seen.insert(index).second);
  }
  EXPECT_THAT(seen, SizeIs(10));
}

TEST(Shard, ComesFromTheScheduler) {
  struct Case {
    std::map<const char*, const char*> variables;
    std::optional<Shard> shard;
    bool ok = true;
  };
  const Case cases[] = {
      {{}, std::nullopt},
      {{{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "8"}}, Shard{3, 8}},
      {{{"SLURM_ARRAY_TASK_ID", "3"},
        {"SLURM_ARRAY_TASK_COUNT", "3"},
        {"SLURM_ARRAY_TASK_MIN", "1"}},
       Shard{2, 3}},
      {{{"SLURM_ARRAY_TASK_ID", "20"},
        {"SLURM_ARRAY_TASK_COUNT", "3"},
        {"SLURM_ARRAY_TASK_MIN", "10"},
        {"SLURM_ARRAY_TASK_STEP", "5"}},
       Shard{2, 3}},
      {{{"JOB_COMPLETION_INDEX", "0"}, {"JOB_COMPLETIONS", "2"}}, Shard{0, 2}},
      {{{"JOB_COMPLETION_INDEX", "0"}}, std::nullopt, false},
      {{{"SLURM_ARRAY_TASK_ID", "9"}, {"SLURM_ARRAY_TASK_COUNT", "3"}}, std::nullopt, false},
      {{{"SLURM_ARRAY_TASK_ID", "x"}, {"SLURM_ARRAY_TASK_COUNT", "3"}}, std::nullopt, false},
  };
  for (const Case& c : cases) {
    for (const auto& [name, value] : c.variables) setenv(name, value, 1);
    const auto shard = shard_from_environment();
    EXPECT_EQ(shard.ok(), c.ok);
    if (shard.ok()) {
      EXPECT_EQ(*shard, c.shard);
    }
    for (const auto& [name, value] : c.variables) unsetenv(name);
  }
}

TEST(Sweep, ShardsTogetherDoEverythingOnceAndMergeToTheUnion) {
  cache_testing::TemporaryDirectory directory;
  const std::string sweep = directory.file("sweep");
  const Manifest manifest = manifest_of(11);
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  FakeTuner tuner;
  for (int i = 0; i < 3; ++i) {
    const auto outcome = run_sweep(manifest, {.directory = sweep, .shard = {i, 3}, .devices = 2},
                                   tuner.function(), kGoOn);
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->tuned, i < 2 ? 4 : 3);
  }
  EXPECT_THAT(tuner.tuned, SizeIs(11));
  for (const auto& [length, times] : tuner.tuned) EXPECT_EQ(times, 1) << length;
  EXPECT_THAT(sweep_entries(sweep), SizeIs(11));
  EXPECT_GT(merge_sweep(sweep, directory.file("all.db")).value(), 0);
  EXPECT_EQ(merge_sweep(sweep, directory.file("all.db")).value(), 0);
  EXPECT_THAT((*open_store(directory.file("all.db")))->winners(cache_testing::kDevice).value(),
              SizeIs(11));
}

TEST(Sweep, StoppedAtAnyProblemItResumesWithoutRepeating) {
  for (int stop_after = 1; stop_after <= 12; ++stop_after) {
    cache_testing::TemporaryDirectory directory;
    const std::string sweep = directory.file("sweep");
    const Manifest manifest = manifest_of(6);
    ASSERT_TRUE(write_manifest(manifest, sweep).ok());
    FakeTuner tuner;
    int reports = 0;
    const auto first = run_sweep(manifest, {.directory = sweep}, tuner.function(),
                                 [&](const SweepProgress&) { return ++reports < stop_after; });
    const auto finished = sweep_entries(sweep);
    EXPECT_EQ(static_cast<int>(finished.size()), first->tuned);
    const auto before = tuner.tuned;
    const auto second = run_sweep(manifest, {.directory = sweep}, tuner.function(), kGoOn);
    EXPECT_EQ(second->before, first->tuned);
    EXPECT_EQ(second->before + second->tuned, 6);
    for (const SweepProblem& problem : manifest.problems) {
      if (finished.contains(problem.digest())) {
        EXPECT_EQ(tuner.tuned.at(problem.shape.q_len), before.at(problem.shape.q_len));
      }
    }
  }
}

// A tuner whose candidates are timed by FakeExecutor; `step` is called before each step of one.
SweepTuner searching_tuner(std::map<std::int64_t, std::map<std::string, int>>& timed,
                           const std::function<void()>& step) {
  return [&timed, step](const SweepProblem& problem, int, Store& store,
                        const TuneObserver& observer) {
    FakeExecutor executor([step](const KernelPlan& plan) {
      step();
      const auto& p = std::get<Sm80Plan>(plan.tile);
      return Behaviour{.time_us = 100.0 + p.tile_q + 3 * p.stages};
    });
    SearchProblem space{.key = cache_testing::measurement_key(problem.shape.kv_len), .plans = {}};
    for (int tile_q = 16; tile_q <= 64; tile_q += 16) {
      for (int stages = 1; stages <= 4; ++stages)
        space.plans.push_back(sm80_plan(tile_q, 64, stages, 4));
    }
    auto result =
        search(space, executor, store, {.compile_threads = 1}, executor.clock(), observer);
    for (const auto& [candidate, times] : executor.timings)
      timed[problem.shape.kv_len][to_string(candidate.plan)] += times;
    return result;
  };
}

TEST(Sweep, KilledAnywhereItGoesOnWithNothingLostOrRepeated) {
  using Counts = std::map<std::pair<std::int64_t, std::string>, int>;
  const Manifest manifest = manifest_of(2);
  const auto rows = [&](const std::string& file) {
    Counts counts;
    const auto store = std::move(*open_store(file));
    for (const SweepProblem& problem : manifest.problems) {
      const std::int64_t length = problem.shape.kv_len;
      const auto found = store->measurements(cache_testing::measurement_key(length)).value();
      for (const Measurement& m : found) ++counts[{length, m.plan}];
    }
    return counts;
  };
  bool killed = true;
  for (int step = 5; killed; step += 41) {
    cache_testing::TemporaryDirectory directory;
    std::map<std::int64_t, std::map<std::string, int>> timed;
    const pid_t child = fork();
    if (child == 0) {
      int left = step;
      const auto tuner = searching_tuner(timed, [&] {
        if (--left == 0) kill(getpid(), SIGKILL);
      });
      _exit(run_sweep(manifest, {.directory = directory.file()}, tuner, kGoOn).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    const std::string file = sweep_files::results(directory.file(), {}, 0);
    const Counts before = rows(file);
    const auto ended = sweep_entries(directory.file());

    const auto outcome =
        run_sweep(manifest, {.directory = directory.file()}, searching_tuner(timed, [] {}), kGoOn);
    ASSERT_TRUE(outcome.ok()) << render(outcome.error());
    EXPECT_EQ(outcome->before, static_cast<int>(ended.size()));
    EXPECT_EQ(outcome->before + outcome->tuned, 2);
    const Counts after = rows(file);
    int again = 0;
    for (const auto& [what, count] : before) {
      EXPECT_GE(after.at(what), count) << "lost: " << what.second;
      // Once and in the final; a final that was cut short begins anew, since it is one comparison.
      EXPECT_LE(after.at(what), 3) << what.second;
      again += after.at(what) == 3;
    }
    EXPECT_LE(again, 6) << "finalists only";
    for (const SweepProblem& problem : manifest.problems) {
      if (ended.contains(problem.digest())) {
        EXPECT_FALSE(timed.contains(problem.shape.kv_len)) << "an ended problem again";
      }
    }
    for (const auto& [digest, entry] : sweep_entries(directory.file()))
      EXPECT_EQ(entry.plan, to_string(sm80_plan(16, 64, 1, 4)));
  }
}

// What a device measured of a problem is in its own file: another one would begin anew.
TEST(Sweep, EachDeviceGoesOnWithTheProblemItWasAt) {
  constexpr int kDevices = 3;
  cache_testing::TemporaryDirectory directory;
  const std::string sweep = directory.file("sweep");
  const Manifest manifest = manifest_of(8);
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  std::mutex mutex;
  std::map<int, std::vector<std::int64_t>> taken;  // lengths, by device, in order
  std::barrier all_began(kDevices);
  const auto tuner = [&](const SweepProblem& problem, int device, Store&,
                         const TuneObserver& observer) -> Result<TuneResult> {
    const bool is_first = [&] {
      const std::lock_guard lock(mutex);
      taken[device].push_back(problem.shape.q_len);
      return taken[device].size() == 1;
    }();
    if (is_first) all_began.arrive_and_wait();
    TuneResult result{.plan = sm80_plan(128, 64, 2, 4)};
    result.stopped = !observer({});
    return result;
  };
  const auto run = [&](bool to_the_end) {
    taken.clear();
    return run_sweep(manifest, {.directory = sweep, .devices = kDevices}, tuner,
                     [&](const SweepProgress&) { return to_the_end; });
  };
  ASSERT_EQ(run(false)->tuned, 0);
  const auto at = taken;
  ASSERT_THAT(at, SizeIs(kDevices));
  for (const bool to_the_end : {false, true}) {
    ASSERT_TRUE(run(to_the_end).ok());
    for (const auto& [device, lengths] : at)
      EXPECT_EQ(taken.at(device).front(), lengths.front()) << "device " << device;
  }
  EXPECT_THAT(sweep_entries(sweep), SizeIs(8));
}

TEST(Sweep, AFailedProblemCostsItselfAndIsRetriedWhenAsked) {
  cache_testing::TemporaryDirectory directory;
  const std::string sweep = directory.file("sweep");
  const Manifest manifest = manifest_of(4);
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  FakeTuner tuner;
  tuner.fails = {2};
  EXPECT_EQ(run_sweep(manifest, {.directory = sweep}, tuner.function(), kGoOn)->failed, 1);
  EXPECT_THAT(sweep_entries(sweep).at(manifest.problems[1].digest()).error,
              ::testing::HasSubstr("planted"));
  EXPECT_EQ(run_sweep(manifest, {.directory = sweep}, tuner.function(), kGoOn)->before, 4);
  tuner.fails.clear();
  EXPECT_EQ(
      run_sweep(manifest, {.directory = sweep, .retry = true}, tuner.function(), kGoOn)->tuned, 1);
  EXPECT_EQ(sweep_entries(sweep).at(manifest.problems[1].digest()).error, "");
}

TEST(Sweep, ALineCutShortByAKillSpoilsOnlyItself) {
  cache_testing::TemporaryDirectory directory;
  const std::string sweep = directory.file("sweep");
  const Manifest manifest = manifest_of(3);
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  std::ofstream(sweep_files::journal(sweep, {}, 0)) << R"({"problem": "abc", "err)";
  FakeTuner tuner;
  EXPECT_EQ(run_sweep(manifest, {.directory = sweep}, tuner.function(), kGoOn)->tuned, 3);
  EXPECT_THAT(sweep_entries(sweep), SizeIs(3));
}

TEST(Sweep, AProblemThatIsNotInTheFileIsNotDone) {
  cache_testing::TemporaryDirectory directory;
  const Manifest manifest = manifest_of(3);
  FakeTuner tuner;
  tuner.unstored = {2};
  const auto full = run_sweep(manifest, {.directory = directory.file()}, tuner.function(), kGoOn);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().id, "cache-full");
  EXPECT_THAT(sweep_entries(directory.file()), SizeIs(1));
  tuner.unstored.clear();
  EXPECT_EQ(run_sweep(manifest, {.directory = directory.file()}, tuner.function(), kGoOn)->tuned,
            2);
}

TEST(Sweep, AShardIsRunByOneAtATime) {
  cache_testing::TemporaryDirectory directory;
  const Manifest manifest = manifest_of(4);
  const std::string sweep = directory.file("sweep");
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  FakeTuner tuner;
  const auto run = [&](int index) {
    return run_sweep(manifest, {.directory = sweep, .shard = {index, 2}}, tuner.function(), kGoOn);
  };
  {
    const auto held = ShardLock::acquire(sweep, {0, 2});
    ASSERT_TRUE(held.ok());
    const auto second = run(0);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().id, "sweep-shard-busy");
    EXPECT_TRUE(tuner.tuned.empty());
    EXPECT_TRUE(run(1).ok()) << "another shard, another lock";
  }
  EXPECT_TRUE(run(0).ok());
  EXPECT_THAT(tuner.tuned, SizeIs(4));
}

TEST(Sweep, AShardIsFreeOnceItsProcessWasKilled) {
  cache_testing::TemporaryDirectory directory;
  const auto acquire = [&] { return ShardLock::acquire(directory.file("."), {}); };
  LockHolder other(acquire);
  ASSERT_TRUE(other.holds());
  EXPECT_FALSE(acquire().ok()) << "another process holds it";
  other.kill();
  EXPECT_TRUE(acquire().ok());
}

TEST(Sweep, FilesThatCannotBeWrittenAreAnError) {
  FakeTuner tuner;
  EXPECT_FALSE(
      run_sweep(manifest_of(2), {.directory = "/proc/nowhere"}, tuner.function(), kGoOn).ok());
}

}  // namespace
}  // namespace attune
