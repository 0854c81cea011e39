// The background thread on the CPU family: launches go on, with the right numbers, while the tuned
// plan is compiled and takes the place of code that was there.
#include <attune/attune.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/reference/oracle.hpp"
#include "tests/cpu/cpu_test.hpp"

namespace attune {
namespace {

constexpr const char* kYaml =
    "attune: 1\nname: background\ndtype: fp32\nhead_dim: 64\nlayout: bhsd\nmask: causal\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 150, .kv_len = 150};
constexpr att_shape kAttShape = {1, 2, 2, 150, 150};

class Background : public testing_support::CpuTest {
 protected:
  void SetUp() override {
    CpuTest::SetUp();
    if (IsSkipped()) return;
    std::filesystem::create_directories(directory_);
    auto spec = parse_spec(kYaml, "");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    spec_ = *std::move(spec);
    ASSERT_EQ(att_spec_from_yaml(kYaml, &handle_), ATT_OK) << att_last_error();
    problem_ = random_problem(spec_, kShape, 11);
    oracle_ = oracle_forward(spec_, problem_, Arithmetic::kVector);
  }
  void TearDown() override {
    att_spec_destroy(handle_);
    std::filesystem::remove_all(directory_);
  }

  att_runtime* runtime(int background) const {
    const std::string file = (directory_ / "cache.db").string();
    const att_runtime_options options = {sizeof options, "cpu", file.c_str(), background};
    att_runtime* created = nullptr;
    EXPECT_EQ(att_runtime_create(&options, &created), ATT_OK) << att_last_error();
    return created;
  }
  // Empty, or what is wrong with one launch's output.
  std::string launch(const att_kernel* kernel) const {
    const std::vector<float> q(problem_.q.begin(), problem_.q.end());
    const std::vector<float> k(problem_.k.begin(), problem_.k.end());
    const std::vector<float> v(problem_.v.begin(), problem_.v.end());
    std::vector<float> o(q.size()), lse(2 * 150);
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = kAttShape;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.o = o.data();
    args.lse = lse.data();
    if (att_forward(kernel, &args, nullptr) != ATT_OK) return att_last_error();
    return compare({.o = {o.begin(), o.end()}, .lse = {lse.begin(), lse.end()}}, oracle_).wrong;
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("attune_background_" + std::to_string(getpid()));
  AttentionSpec spec_;
  att_spec* handle_ = nullptr;
  HostProblem problem_;
  ForwardOracle oracle_;
};

TEST_F(Background, LaunchesGoOnWhileTheTunedPlanIsCompiled) {
  att_runtime* first = runtime(0);
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_kernel_get(first, handle_, &kAttShape, &kernel), ATT_OK) << att_last_error();
  const std::string model = att_kernel_plan(kernel);
  att_kernel_destroy(kernel);
  att_runtime_destroy(first);

  // What a sweep on another machine of this kind would bring: a winner without its code.
  std::string tuned;
  for (const KernelPlan& plan : legal_plans(spec_, Family::kCpu, device_->facts())) {
    if (to_string(plan) != model) tuned = to_string(plan);
  }
  ASSERT_NE(tuned, "");
  {
    auto store = open_store((directory_ / "cache.db").string());
    ASSERT_TRUE(store.ok()) << render(store.error());
    const Status recorded = (*store)->record({.spec_hash = spec_hash(spec_),
                                              .device = device_->identity(),
                                              .shape = kShape,
                                              .protocol = std::string(kMeasurementProtocol)},
                                             {.plan = tuned,
                                              .build_digest = "elsewhere",
                                              .median_us = 1,
                                              .spread_us = 0.1,
                                              .samples = 10});
    ASSERT_TRUE(recorded.ok()) << render(recorded.error());
  }
  att_runtime* second = runtime(1);
  ASSERT_EQ(att_kernel_get(second, handle_, &kAttShape, &kernel), ATT_OK) << att_last_error();
  std::vector<std::string> wrong(3);
  {
    std::vector<std::jthread> threads;
    for (std::string& mine : wrong) {
      threads.emplace_back([&] {
        do {
          mine = launch(kernel);
        } while (mine.empty() && att_kernel_source(kernel) == std::string("stand-in"));
        if (mine.empty()) mine = launch(kernel);
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<std::string>(3));
  att_runtime_wait(second);
  EXPECT_EQ(att_kernel_plan(kernel), tuned);
  EXPECT_STREQ(att_kernel_source(kernel), "measured");
  att_runtime_destroy(second);
  EXPECT_EQ(launch(kernel), "");
  att_kernel_destroy(kernel);
}

}  // namespace
}  // namespace attune
