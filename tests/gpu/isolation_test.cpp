// Candidates of every bad kind on a real GPU, in real workers: each costs itself and at most a
// worker, and none is ever tried again.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planted_worker.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/isolation/tune_isolated.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/search/seeds.hpp"
#include "tuner/sweep/sweep.hpp"

namespace attune::gpu_test {
namespace {

using testing::HasSubstr;

constexpr const char* kYaml = "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 2048, .kv_len = 2048};
// Long for a kernel of some microseconds; the one candidate that hangs costs it.
constexpr std::chrono::milliseconds kRunDeadline{5000};

class Isolation : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
    std::filesystem::create_directories(directory_);
    auto spec = parse_spec(kYaml, "t.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    spec_ = *std::move(spec);
    auto store = open_store(cache_file());
    ASSERT_TRUE(store.ok()) << render(store.error());
    store_ = *std::move(store);
    plans_ = search_seeds(*plans_by_cost(spec_, kShape, bank().device().facts()));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static KernelBank& bank() { return KernelBank::instance(); }
  // As a worker opens it.
  static std::string compiler_name() { return attune::compiler_name(bank().compiler()); }
  std::string cache_file() const { return (directory_ / "cache.db").string(); }
  std::string symbol(std::size_t index) const { return launch_recipe(spec_, plans_[index]).symbol; }
  static IsolationOptions planted_workers() {
    return {.worker_command = {"/proc/self/exe", kPlantedWorker}, .run_deadline = kRunDeadline};
  }
  MeasurementKey key() const {
    return {.spec_hash = spec_hash(spec_),
            .device = bank().device().identity(),
            .shape = kShape,
            .protocol = std::string(kMeasurementProtocol)};
  }
  Result<TuneResult> tune(IsolatedExecutor& executor) {
    const WorkerProblem problem{.spec_yaml = kYaml,
                                .spec_file = "t.yaml",
                                .shape = kShape,
                                .device = "cuda:0",
                                .compilers = {compiler_name()},
                                .cache = cache_file(),
                                .seed = 3};
    Compiler* const compilers[] = {&bank().compiler()};
    return tune_isolated(problem, spec_, bank().device(), compilers, *store_, executor,
                         {.max_candidates = 8}, [](const TuneProgress&) { return true; });
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("attune_planted_" + std::to_string(getpid()));
  AttentionSpec spec_;
  std::unique_ptr<Store> store_;
  std::vector<KernelPlan> plans_;  // that the search asks for first
};

TEST_F(Isolation, PlantedCandidatesCostThemselvesAndTheWinnerIsRight) {
  const std::map<std::string, std::string> planted = {{symbol(0), "hang"},
                                                      {symbol(1), "fault"},
                                                      {symbol(2), "miscompute"},
                                                      {symbol(3), "no-compile"}};
  plant(planted);
  IsolatedExecutor executor(planted_workers());
  const auto result = tune(executor);
  ASSERT_TRUE(result.ok()) << render(result.error());
  EXPECT_GE(result->rejected, 4);  // a compiler may refuse others
  EXPECT_GT(result->measured, 0);
  EXPECT_EQ(executor.restarts(), 2) << "after the hang and after the fault";
  EXPECT_FALSE(planted.contains(launch_recipe(spec_, result->plan).symbol));

  std::map<std::string, std::string> reasons;
  const auto rejections = store_->rejections(key());
  ASSERT_TRUE(rejections.ok());
  for (const Rejection& r : *rejections) {
    const std::string name = launch_recipe(spec_, *parse_plan(r.plan)).symbol;
    if (planted.contains(name)) reasons[name] = r.reason;
  }
  const std::map<std::string, std::string> expected = {
      {symbol(0), "hang"}, {symbol(1), "fault"}, {symbol(2), "miscompute"}, {symbol(3), "compile"}};
  EXPECT_EQ(reasons, expected);
  // What a measurement depends on stands beside it.
  const auto measurements = store_->measurements(key());
  ASSERT_TRUE(measurements.ok());
  ASSERT_FALSE(measurements->empty());
  for (const char* condition : {"sm_mhz", "temperature_c", "power_w", "throttle"}) {
    EXPECT_THAT(measurements->front().conditions, HasSubstr(condition));
  }

  IsolatedExecutor again(planted_workers());
  const auto repeated = tune(again);
  ASSERT_TRUE(repeated.ok()) << render(repeated.error());
  EXPECT_EQ(repeated->measured, 0);
  EXPECT_EQ(repeated->rejected, result->rejected);
  EXPECT_EQ(again.restarts(), 0);
}

TEST_F(Isolation, ASweepOverAllGpusGoesOnPastPlantedCandidates) {
  const int gpus = std::min(*cuda_device_count(), 2);
  std::vector<SweepProblem> problems;
  std::map<std::string, std::string> planted;
  for (int i = 0; i < 2 * gpus; ++i) {
    const ProblemShape shape{
        .batch = 1, .heads = 4, .kv_heads = 2, .q_len = 512 * (i + 1), .kv_len = 512 * (i + 1)};
    problems.push_back({.spec_source = "t.yaml", .spec_yaml = kYaml, .shape = shape});
    const auto plans = search_seeds(*plans_by_cost(spec_, shape, bank().device().facts()));
    planted[launch_recipe(spec_, plans[0]).symbol] = "fault";
    planted[launch_recipe(spec_, plans[1]).symbol] = "miscompute";
  }
  plant(planted);
  const std::string sweep = (directory_ / "sweep").string();
  const Manifest manifest = make_manifest(problems);
  ASSERT_TRUE(write_manifest(manifest, sweep).ok());
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<IsolatedExecutor>> executors;
  for (int i = 0; i < gpus; ++i) {
    auto device = open_cuda_device(i);
    ASSERT_TRUE(device.ok()) << render(device.error());
    devices.push_back(*std::move(device));
    executors.push_back(std::make_unique<IsolatedExecutor>(planted_workers()));
  }
  Compiler* const compilers[] = {&bank().compiler()};
  const SweepTuner tuner = [&](const SweepProblem& problem, int device, Store& store,
                               const TuneObserver& observer) {
    const auto index = static_cast<std::size_t>(device);
    const WorkerProblem shared{.spec_yaml = problem.spec_yaml,
                               .spec_file = problem.spec_source,
                               .shape = problem.shape,
                               .device = "cuda:" + std::to_string(device),
                               .compilers = {compiler_name()},
                               .cache = store.path(),
                               .seed = 5};
    return tune_isolated(shared, spec_, *devices[index], compilers, store, *executors[index],
                         {.max_candidates = 6}, observer);
  };
  const auto outcome = run_sweep(manifest, {.directory = sweep, .devices = gpus}, tuner,
                                 [](const SweepProgress&) { return true; });
  ASSERT_TRUE(outcome.ok()) << render(outcome.error());
  EXPECT_EQ(outcome->tuned, 2 * gpus);
  EXPECT_EQ(outcome->failed, 0);
  for (const auto& [digest, entry] : sweep_entries(sweep)) {
    ASSERT_GT(entry.measured, 0) << entry.error;
    EXPECT_FALSE(planted.contains(launch_recipe(spec_, *parse_plan(entry.plan)).symbol));
  }
  for (const auto& executor : executors) EXPECT_GT(executor->restarts(), 0);
  const std::string all = (directory_ / "all.db").string();
  ASSERT_TRUE(merge_sweep(sweep, all).ok());
  const auto winners = (*open_store(all))->winners(bank().device().identity());
  ASSERT_TRUE(winners.ok());
  EXPECT_EQ(winners->size(), problems.size()) << "the GPUs of a host are of one kind";
}

}  // namespace
}  // namespace attune::gpu_test
