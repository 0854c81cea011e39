// Candidates of every bad kind on a real GPU, in real workers: each costs itself and at most a
// worker, and none is ever tried again.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/gpu/kernel_bank.hpp"
#include "tests/gpu/planted_worker.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/isolation/tune_isolated.hpp"
#include "tuner/measure/local_executor.hpp"

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
    plans_ = *plans_by_cost(spec_, kShape, bank().device().facts());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static KernelBank& bank() { return KernelBank::instance(); }
  std::string cache_file() const { return (directory_ / "cache.db").string(); }
  std::string symbol(std::size_t index) const { return launch_recipe(spec_, plans_[index]).symbol; }
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
                                .compilers = {"nvrtc"},
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
  std::vector<KernelPlan> plans_;  // the search asks for the first ones first
};

TEST_F(Isolation, PlantedCandidatesCostThemselvesAndTheWinnerIsRight) {
  const std::map<std::string, std::string> planted = {{symbol(0), "hang"},
                                                      {symbol(1), "fault"},
                                                      {symbol(2), "miscompute"},
                                                      {symbol(3), "no-compile"}};
  plant(planted);
  const IsolationOptions options{.worker_command = {"/proc/self/exe", kPlantedWorker},
                                 .run_deadline = kRunDeadline};
  IsolatedExecutor executor(options);
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

  IsolatedExecutor again(options);
  const auto repeated = tune(again);
  ASSERT_TRUE(repeated.ok()) << render(repeated.error());
  EXPECT_EQ(repeated->measured, 0);
  EXPECT_EQ(repeated->rejected, result->rejected);
  EXPECT_EQ(again.restarts(), 0);
}

}  // namespace
}  // namespace attune::gpu_test
