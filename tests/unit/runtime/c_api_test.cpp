// The C interface on the CPU device: what it refuses, what it returns, and launches.
#include "tests/unit/runtime/c_api_test.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <attune/attune.hpp>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace attune::c_api_test {
namespace {

TEST_F(CApi, NullArgumentsAreRefusedByName) {
  EXPECT_EQ(att_runtime_create(nullptr, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`out` is null"));
  EXPECT_EQ(att_spec_from_yaml(nullptr, &spec_), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`yaml` is null"));
  EXPECT_EQ(att_kernel_get(nullptr, nullptr, nullptr, &kernel_), ATT_BAD_INPUT);
  EXPECT_EQ(att_forward(nullptr, nullptr, nullptr), ATT_BAD_INPUT);
  EXPECT_EQ(att_spec_scalar_slot(nullptr, "x"), -1);
  EXPECT_EQ(att_kernel_workspace_bytes(nullptr, nullptr), SIZE_MAX);
  att_runtime_destroy(nullptr);
  att_spec_destroy(nullptr);
  att_kernel_destroy(nullptr);
}

TEST_F(CApi, StatusIsWrittenAsFarAsItFits) {
  EXPECT_EQ(att_runtime_status(nullptr, nullptr, 0), 0u);
  const std::size_t size = att_runtime_status(runtime_, nullptr, 0);
  ASSERT_GT(size, 2u);
  std::vector<char> whole(size + 1, 'x'), part(9, 'x');
  EXPECT_EQ(att_runtime_status(runtime_, whole.data(), size), size);
  EXPECT_EQ(whole[size - 1], '\0');
  EXPECT_EQ(whole[size], 'x');
  EXPECT_THAT(whole.data(), HasSubstr("\"device\""));
  EXPECT_THAT(whole.data(), HasSubstr("\"target\": \"cpu\""));
  EXPECT_EQ(att_runtime_status(runtime_, part.data(), 8), size);
  EXPECT_EQ(std::string(part.data()), std::string(whole.data(), 7));
  EXPECT_EQ(part[8], 'x');
}

TEST_F(CApi, ARefreshKeepsKernels) {
  EXPECT_EQ(att_runtime_refresh(nullptr), ATT_BAD_INPUT);
  att_runtime_wait(nullptr);
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(att_runtime_refresh(runtime_), ATT_OK) << att_last_error();
  att_runtime_wait(runtime_);
  const att_forward_args args = arguments();
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, TensorsAreToldInTheSizesOfAShape) {
  spec(
      "attune: 1\nname: t\ndtype: fp32\nhead_dim: 8\nmask: document(doc)\n"
      "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n");
  constexpr att_shape kSquare = {1, 2, 1, 5, 5};
  kernel(kSquare);
  if (IsSkipped()) return;
  const std::int32_t doc[] = {0, 0, 1, 1, 1};
  std::int64_t sizes[] = {1, 5};
  const att_tensor view = {doc, sizes, nullptr, ATT_INT32, 2};
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, kernel_, &kSquare, &view, 1), ATT_OK)
      << att_last_error();
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, kernel_, &kSquare, &view, 2), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("tensor_count is 2, and the spec has 1"));
  sizes[1] = 4;
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, kernel_, &kSquare, &view, 1), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("has sizes (1, 4), and this launch needs (1, 5)"));
  const att_tensor without = {nullptr, sizes, nullptr, ATT_INT32, 2};
  sizes[1] = 5;
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, kernel_, &kSquare, &without, 1), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`doc` is null"));
  // As a launch of it, an empty batch needs none of them.
  constexpr att_shape kEmpty = {0, 2, 1, 5, 5};
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, kernel_, &kEmpty, &without, 1), ATT_OK)
      << att_last_error();
  EXPECT_EQ(att_runtime_tell_tensors(nullptr, kernel_, &kSquare, &view, 1), ATT_BAD_INPUT);
  EXPECT_EQ(att_runtime_tell_tensors(runtime_, nullptr, &kSquare, &view, 1), ATT_BAD_INPUT);
}

// Another runtime's code may be another device's.
TEST_F(CApi, AKernelIsToldOfByItsOwnRuntime) {
  spec(kFull);
  kernel();
  if (IsSkipped()) return;
  EXPECT_EQ(att_runtime_tell_shares(runtime_, kernel_, 0.5, 0.25), ATT_OK) << att_last_error();
  const att_runtime_options options = {sizeof options, "cpu", ""};
  att_runtime* other = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &other), ATT_OK) << att_last_error();
  EXPECT_EQ(att_runtime_tell_shares(other, kernel_, 0.5, 0.25), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("of another runtime"));
  att_runtime_destroy(other);
}

// Nobody looks at more gradients than the spec has tensors.
TEST_F(CApi, GradientsOfAnEmptyBatchAreCounted) {
  spec("attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\npasses: [backward]\n");
  const att_status status =
      att_kernel_get_for_pass(runtime_, spec_, &kShape, ATT_PASS_BACKWARD, &kernel_);
  if (status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
  ASSERT_EQ(status, ATT_OK) << att_last_error();
  att_backward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kShape;
  args.shape.batch = 0;
  EXPECT_EQ(att_backward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
  float* gradients[] = {nullptr, nullptr};
  args.d_tensors = gradients;
  args.d_tensor_count = 2;
  EXPECT_EQ(att_backward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("d_tensor_count is 2, and the spec has 0 tensors"));
}

TEST_F(CApi, AnUnknownDeviceIsBadInput) {
  att_runtime_options options = {sizeof options, "gpu0", ""};
  att_runtime* runtime = nullptr;
  EXPECT_EQ(att_runtime_create(&options, &runtime), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("unknown device `gpu0`"));
}

TEST_F(CApi, ABadSpecShowsWhere) {
  EXPECT_EQ(att_spec_from_yaml("attune: 1\nname: x\nhead_dim: 64\nmaks: causal\n", &spec_),
            ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("4:1"));
  EXPECT_THAT(att_last_error(), HasSubstr("did you mean `mask`?"));
  EXPECT_EQ(spec_, nullptr);
}

TEST_F(CApi, AKernelRunsItsOwnPassOnly) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_EQ(att_backward(nullptr, nullptr, nullptr), ATT_BAD_INPUT);
  att_backward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kShape;
  EXPECT_EQ(att_backward(kernel_, &args, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("the kernel is of the forward pass"));
}

TEST_F(CApi, EqualScoresAverageTheValues) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  for (int i = 0; i < 40; ++i)
    v_[static_cast<size_t>(i / 16)].values[i % 16] = static_cast<float>(i);
  std::vector<float> lse(6, NAN);
  att_forward_args args = arguments();
  args.lse = lse.data();
  ASSERT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
  for (int i = 0; i < 48; ++i) {  // the mean of rows 0, 8, ..., 32 is 16
    EXPECT_NEAR(o_[static_cast<size_t>(i / 16)].values[i % 16], 16 + i % 8, 1e-5);
  }
  for (const float value : lse) EXPECT_NEAR(value, std::log(5.0), 1e-6);
}

TEST_F(CApi, TheSameKernelComesBackToEveryThread) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_STREQ(att_kernel_source(kernel_), "model");
  EXPECT_THAT(att_kernel_plan(kernel_), HasSubstr("cpu forward"));
  std::vector<std::jthread> threads;
  std::vector<att_kernel*> kernels(4, nullptr);
  for (att_kernel*& mine : kernels) {
    threads.emplace_back([&] { (void)att_kernel_get(runtime_, spec_, &kShape, &mine); });
  }
  threads.clear();
  for (att_kernel* mine : kernels) {
    EXPECT_EQ(mine, kernel_);
    att_kernel_destroy(mine);
  }
}

TEST_F(CApi, AKernelOutlivesItsRuntime) {
  spec(kFull);
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  att_runtime_destroy(runtime_);
  runtime_ = nullptr;
  const att_forward_args args = arguments();
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
}

TEST_F(CApi, AForkedProcessNeedNotWaitForThreadsThatItHasNot) {
  att_runtime_options options = {sizeof options, "cpu", "", 1};
  att_runtime* background = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &background), ATT_OK) << att_last_error();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // kills it
    (void)att_runtime_refresh(background);
    att_runtime_wait(background);
    att_runtime_destroy(background);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  att_runtime_destroy(background);
}

TEST_F(CApi, TheHeaderSaysTheLibrarysVersion) {
  EXPECT_EQ(att_version(), std::to_string(ATT_VERSION_MAJOR) + "." +
                               std::to_string(ATT_VERSION_MINOR) + "." +
                               std::to_string(ATT_VERSION_PATCH));
}

TEST_F(CApi, APassThatNoKernelHasIsSaidToBeSo) {
  spec(kFull);
  EXPECT_EQ(att_kernel_get_for_pass(runtime_, spec_, &kShape, 7, &kernel_), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("pass 7"));
  // Every head adds to it, in no order.
  const std::string learned =
      "deterministic: true\n"
      "tensors: {bias: {dtype: float32, dims: [q_len, kv_len], grad: true}}\n"
      "score: score + bias[q_idx, kv_idx]\n";
  for (const char* passes : {"", "passes: [forward, backward]\n"}) {
    att_spec_destroy(spec_);
    spec(kFull + learned + passes);
    EXPECT_EQ(att_kernel_get_for_pass(runtime_, spec_, &kShape, ATT_PASS_BACKWARD, &kernel_),
              ATT_UNSUPPORTED);
    EXPECT_THAT(att_last_error(), HasSubstr("backward pass on cpu"));
    EXPECT_EQ(kernel_, nullptr);
  }
}

// A path below a file can be no cache.
constexpr const char* kNoCache = "/proc/version/attune.db";

TEST(CApiLog, AWarningGoesToTheHostsLogUntilTheRuntimeIsGone) {
  std::vector<std::string> lines;
  att_runtime_options options = {sizeof options, "cpu", kNoCache};
  options.log = [](void* context, int level, const char* line) {
    EXPECT_EQ(level, ATT_LOG_WARNING);
    static_cast<std::vector<std::string>*>(context)->push_back(line);
  };
  options.log_context = &lines;
  att_runtime* runtime = nullptr;
  testing::internal::CaptureStderr();
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  att_runtime_destroy(runtime);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr(kNoCache));
}

TEST(CApiLog, WithoutAHostsLogItIsStderr) {
  const att_runtime_options options = {sizeof options, "cpu", kNoCache};
  att_runtime* runtime = nullptr;
  testing::internal::CaptureStderr();
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  att_runtime_destroy(runtime);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(kNoCache));
}

TEST(CApiLog, CppKeepsTheLogAsLongAsTheRuntime) {
  std::vector<std::string> lines;
  RuntimeOptions options;
  options.device = "cpu";
  options.cache_file = kNoCache;
  options.log = [&lines](const std::string& line) { lines.push_back(line); };
  auto first = Runtime::create(options);
  ASSERT_TRUE(first) << first.error().message;
  auto second = Runtime::create(options);
  ASSERT_TRUE(second) << second.error().message;
  *first = std::move(*second);
  EXPECT_TRUE(first->refresh()) << "of the one that is left";
  EXPECT_GE(lines.size(), 2u);
}

}  // namespace
}  // namespace attune::c_api_test
