// The whole path on a machine without a GPU: spec, generate, JIT, verify, tune, cache; then, in a
// second process, look-up, load from the cache and launch through the C interface.
#include <attune/attune.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "runtime/engine/engine.hpp"
#include "runtime/reference/oracle.hpp"
#include "tests/cpu/cpu_test.hpp"
#include "tuner/tuner.hpp"

extern char** environ;

namespace attune {
namespace {

constexpr const char* kYaml =
    "attune: 1\nname: pipeline\ndtype: fp32\nhead_dim: 64\nlayout: bhsd\n"
    "mask: causal and kv_idx % 5 != 3\nscore: 20 * tanh(score / 20)\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 150, .kv_len = 150};
constexpr const char* kCacheVariable = "ATTUNE_TEST_PIPELINE_CACHE";

// Runs one test of this binary in a process of its own; returns its exit code.
int run_in_new_process(const char* filter) {
  const std::string argument = std::string("--gtest_filter=") + filter;
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  char* arguments[] = {program.data(), const_cast<char*>(argument.c_str()),
                       const_cast<char*>("--gtest_also_run_disabled_tests"), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return -1;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class CpuPipeline : public testing_support::CpuTest {
 protected:
  void SetUp() override {
    CpuTest::SetUp();
    if (IsSkipped()) return;
    std::filesystem::create_directories(directory_);
    setenv(kCacheVariable, file().c_str(), 1);
    auto spec = parse_spec(kYaml, "pipeline.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    spec_ = *std::move(spec);
  }
  void TearDown() override {
    unsetenv(kCacheVariable);
    std::filesystem::remove_all(directory_);
  }

  std::string file() const { return (directory_ / "cache.db").string(); }
  // Tunes into the file.
  void tune_problem() {
    auto store = open_store(file());
    ASSERT_TRUE(store.ok()) << render(store.error());
    const auto result =
        tune(spec_, kShape, *device_, std::array{compiler_.get()}, **store,
             {.max_candidates = 3, .compile_threads = 1}, [](const TuneProgress&) { return true; });
    const auto rejections = (*store)->rejections({.spec_hash = spec_hash(spec_),
                                                  .device = device_->identity(),
                                                  .shape = kShape,
                                                  .protocol = std::string(kMeasurementProtocol)});
    ASSERT_TRUE(rejections.ok()) << render(rejections.error());
    for (const Rejection& rejection : *rejections) {
      ADD_FAILURE() << rejection.plan << ": " << rejection.reason << ": " << rejection.detail;
    }
    ASSERT_TRUE(result.ok()) << render(result.error());
    EXPECT_GT(result->measured, 0);
    EXPECT_EQ(result->rejected, 0);
    EXPECT_GT(result->median_us, 0);
    EXPECT_EQ(result->compiler, compiler_->identity());
    plan_ = to_string(result->plan);
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("attune_pipeline_" + std::to_string(getpid()));
  AttentionSpec spec_;
  std::string plan_;  // that won
};

TEST_F(CpuPipeline, TunedInOneProcessLaunchedInAnother) {
  tune_problem();
  EXPECT_EQ(run_in_new_process("CpuPipelineChild.DISABLED_LaunchesWhatWasTuned"), 0);
}

TEST_F(CpuPipeline, ADamagedCacheRunsTheRightKernel) {
  tune_problem();
  std::ifstream input(file(), std::ios::binary);
  const std::string sound((std::istreambuf_iterator<char>(input)), {});
  const std::string image = [&] {
    const auto store = open_store(file(), {.read_only = true});
    const auto built = build(spec_, *parse_plan(plan_), *compiler_, store->get());
    EXPECT_TRUE(built->from_cache);
    return std::string(built->code.image.begin(), built->code.image.end());
  }();
  // The winner's machine code, its name, and SQLite's own header.
  const std::size_t places[] = {sound.find(image.substr(64, 64)), sound.find(plan_), 16};
  for (const std::size_t at : places) {
    std::string bytes = sound;
    for (std::size_t i = at; i < at + 32; ++i) bytes.at(i) = static_cast<char>(~bytes.at(i));
    std::ofstream(file(), std::ios::binary) << bytes;
    EXPECT_EQ(run_in_new_process("CpuPipelineChild.DISABLED_LaunchesWhatIsRight"), 0) << at;
  }
}

// The second process: launches the problem's kernel, whichever that is, and judges what it
// computes. `look` gets the kernel before.
void launch_and_judge(const std::function<void(const char* file, att_kernel*)>& look) {
  const char* file = std::getenv(kCacheVariable);
  if (file == nullptr) GTEST_SKIP() << "runs in the process that the pipeline test starts";
  const att_runtime_options options = {
      .struct_size = sizeof(att_runtime_options), .device = "cpu", .cache_file = file};
  att_runtime* runtime = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  att_spec* handle = nullptr;
  ASSERT_EQ(att_spec_from_yaml(kYaml, &handle), ATT_OK) << att_last_error();
  const att_shape shape = {1, 2, 2, 150, 150};
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_kernel_get(runtime, handle, &shape, &kernel), ATT_OK) << att_last_error();
  look(file, kernel);

  auto spec = parse_spec(kYaml, "pipeline.yaml");
  ASSERT_TRUE(spec.ok());
  const HostProblem problem = random_problem(*spec, kShape, 11);
  const std::vector<float> q(problem.q.begin(), problem.q.end());
  const std::vector<float> k(problem.k.begin(), problem.k.end());
  const std::vector<float> v(problem.v.begin(), problem.v.end());
  std::vector<float> o(q.size());
  std::vector<float> lse(2 * 150);
  const std::size_t workspace_bytes = att_kernel_workspace_bytes(kernel, &shape);
  std::vector<long double> workspace(workspace_bytes / sizeof(long double) + 1);
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = shape;
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.o = o.data();
  args.lse = lse.data();
  args.workspace = workspace.data();
  ASSERT_EQ(att_forward(kernel, &args, nullptr), ATT_OK) << att_last_error();
  const HostOutput output{.o = {o.begin(), o.end()}, .lse = {lse.begin(), lse.end()}};
  EXPECT_EQ(compare(output, oracle_forward(*spec, problem, Arithmetic::kVector)).wrong, "");
  att_kernel_destroy(kernel);
  att_spec_destroy(handle);
  att_runtime_destroy(runtime);
}

TEST(CpuPipelineChild, DISABLED_LaunchesWhatIsRight) {
  launch_and_judge([](const char*, att_kernel*) {});
}

TEST(CpuPipelineChild, DISABLED_LaunchesWhatWasTuned) {
  launch_and_judge([](const char* file, att_kernel* kernel) {
    EXPECT_STREQ(att_kernel_source(kernel), "measured");
    // The object comes out of the cache, not out of the compiler.
    auto spec = parse_spec(kYaml, "pipeline.yaml");
    auto store = open_store(file, {.read_only = true});
    auto compiler = open_llvm_compiler();
    auto plan = parse_plan(att_kernel_plan(kernel));
    ASSERT_TRUE(spec.ok() && store.ok() && compiler.ok() && plan.ok());
    auto built = build(*spec, *plan, **compiler, store->get());
    ASSERT_TRUE(built.ok()) << render(built.error());
    EXPECT_TRUE(built->from_cache);
  });
}

}  // namespace
}  // namespace attune
