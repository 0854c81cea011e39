// The C interface on the CPU device: what it refuses, what it returns, and one launch.
#include <attune/attune.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/jit/compiler.hpp"

namespace {

using testing::HasSubstr;

constexpr att_shape kShape = {1, 2, 1, 3, 5};
constexpr const char* kFull = "attune: 1\nname: full\ndtype: fp32\nhead_dim: 8\n";

struct alignas(64) Line {
  float values[16];
};

// A runtime on the CPU without cache, and a spec.
class CApi : public testing::Test {
 protected:
  void SetUp() override {
    att_runtime_options options = {sizeof options, "cpu", ""};
    const att_status status = att_runtime_create(&options, &runtime_);
    ASSERT_EQ(status, ATT_OK) << att_last_error();
  }
  void TearDown() override {
    att_kernel_destroy(kernel_);
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }
  void spec(const std::string& yaml) {
    ASSERT_EQ(att_spec_from_yaml(yaml.c_str(), &spec_), ATT_OK) << att_last_error();
  }
  // Skips where the CPU has no compiler.
  void kernel() {
    const att_status status = att_kernel_get(runtime_, spec_, &kShape, &kernel_);
    if (status == ATT_UNAVAILABLE) GTEST_SKIP() << att_last_error();
    ASSERT_EQ(status, ATT_OK) << att_last_error();
  }
  att_forward_args arguments() {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = kShape;
    args.q = q_.data();
    args.k = k_.data();
    args.v = v_.data();
    args.o = o_.data();
    workspace_.resize(att_kernel_workspace_bytes(kernel_, &kShape) / sizeof(Line) + 1);
    args.workspace = workspace_.data();
    return args;
  }

  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
  att_kernel* kernel_ = nullptr;
  std::vector<Line> q_{8}, k_{8}, v_{8}, o_{8}, workspace_;
};

TEST_F(CApi, NullArgumentsAreRefusedByName) {
  EXPECT_EQ(att_runtime_create(nullptr, nullptr), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`out` is null"));
  EXPECT_EQ(att_spec_from_yaml(nullptr, &spec_), ATT_BAD_INPUT);
  EXPECT_THAT(att_last_error(), HasSubstr("`yaml` is null"));
  EXPECT_EQ(att_kernel_get(nullptr, nullptr, nullptr, &kernel_), ATT_BAD_INPUT);
  EXPECT_EQ(att_forward(nullptr, nullptr, nullptr), ATT_BAD_INPUT);
  EXPECT_EQ(att_spec_scalar_slot(nullptr, "x"), -1);
  EXPECT_EQ(att_kernel_workspace_bytes(nullptr, nullptr), 0u);
  att_runtime_destroy(nullptr);
  att_spec_destroy(nullptr);
  att_kernel_destroy(nullptr);
}

TEST_F(CApi, OptionsOfOtherVersionsAreReadAsFarAsTheyAreKnown) {
  struct Newer {
    att_runtime_options known;
    long unknown;
  };
  const struct {
    const char* what;
    std::size_t struct_size;
    long unknown;
    att_status status;
  } cases[] = {
      {"without `background`, as it was first", offsetof(att_runtime_options, background), 7,
       ATT_OK},
      {"this version's", sizeof(att_runtime_options), 7, ATT_OK},
      {"longer, asking for nothing unknown", sizeof(Newer), 0, ATT_OK},
      {"longer, asking for something unknown", sizeof(Newer), 1, ATT_BAD_INPUT},
      {"shorter than the first", offsetof(att_runtime_options, cache_file), 0, ATT_BAD_INPUT},
      {"zero", 0, 0, ATT_BAD_INPUT},
      {"uninitialised", SIZE_MAX, 0, ATT_BAD_INPUT},
  };
  for (const auto& [what, struct_size, unknown, status] : cases) {
    const Newer options = {{struct_size, "cpu", "", 0}, unknown};
    att_runtime* runtime = nullptr;
    EXPECT_EQ(att_runtime_create(&options.known, &runtime), status) << what;
    if (status != ATT_OK) {
      EXPECT_THAT(att_last_error(), HasSubstr("struct_size")) << what;
    }
    att_runtime_destroy(runtime);
  }
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

TEST_F(CApi, DescribesASpecAndItsSlots) {
  spec(
      "attune: 1\nname: x\ndtype: fp16\nhead_dim: {qk: 192, v: 128}\nlayout: bhsd\n"
      "scalars: {window: 4, cap: float}\ntensors: {slope: {dtype: float32, dims: [heads]}}\n"
      "mask: q_idx - kv_idx < window\nscore: cap * tanh((score + slope[h]) / cap)\n");
  att_spec_info info = {};
  info.struct_size = sizeof info;
  ASSERT_EQ(att_spec_describe(spec_, &info), ATT_OK);
  EXPECT_EQ(info.dtype, ATT_FP16);
  EXPECT_EQ(info.layout, ATT_BHSD);
  EXPECT_EQ(info.head_dim_qk, 192);
  EXPECT_EQ(info.head_dim_v, 128);
  EXPECT_EQ(info.tensor_count, 1);
  EXPECT_EQ(att_spec_scalar_slot(spec_, "window"), -1);  // folded into the kernel
  EXPECT_GE(att_spec_scalar_slot(spec_, "cap"), 0);
  EXPECT_EQ(att_spec_tensor_slot(spec_, "slope"), 0);
  EXPECT_EQ(att_spec_tensor_slot(spec_, "slop"), -1);
}

TEST_F(CApi, ShapesAreChecked) {
  spec(kFull);
  const struct {
    att_shape shape;
    const char* message;
  } bad[] = {{{0, 2, 1, 3, 5}, "shape.batch is 0"},
             {{1, 3, 2, 3, 5}, "no multiple"},
             {{1, 2, 1, -1, 5}, "shape.q_len is -1"},
             {{1, 2, 1, 3, int64_t{1} << 40}, "shape.kv_len"},
             {{1, 2, 1, 3, (int64_t{1} << 28) + 1}, "shape.kv_len is 268435457"}};
  for (const auto& [shape, message] : bad) {
    EXPECT_EQ(att_kernel_get(runtime_, spec_, &shape, &kernel_), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
    EXPECT_EQ(kernel_, nullptr);
  }
}

TEST_F(CApi, LaunchArgumentsAreChecked) {
  spec(
      "attune: 1\nname: x\ndtype: fp32\nhead_dim: 8\nscalars: {slope: float}\ndropout: float\n"
      "tensors: {bias: {dtype: float32, dims: [heads]}}\nscore: score * slope + bias[h]\n");
  kernel();
  if (IsSkipped() || HasFatalFailure()) return;
  const att_scalar scalars[16] = {};
  const void* tensors[8] = {q_.data()};
  att_forward_args good = arguments();
  good.scalars = scalars;
  good.tensors = tensors;
  ASSERT_EQ(att_forward(kernel_, &good, nullptr), ATT_OK) << att_last_error();
  const auto refused = [&](const char* message, const auto& spoil) {
    att_forward_args args = good;
    spoil(args);
    EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
    EXPECT_THAT(att_last_error(), HasSubstr(message));
  };
  refused("`k` is null", [](auto& args) { args.k = nullptr; });
  refused("`q` is not aligned",
          [&](auto& args) { args.q = reinterpret_cast<const char*>(args.q) + 4; });
  refused("stride of `v`", [](auto& args) { args.v_strides = {40, 9, 8}; });
  refused("`scalars` is null", [](auto& args) { args.scalars = nullptr; });
  refused("`tensors` is null", [](auto& args) { args.tensors = nullptr; });
  refused("dropout is 1", [](auto& args) { args.dropout = 1; });
  refused("dropout is nan", [](auto& args) { args.dropout = NAN; });
  refused("steps of 1/256", [](auto& args) { args.dropout = 0.001f; });
  refused("struct_size", [](auto& args) { args.struct_size = 8; });
  const void* missing[8] = {};
  refused("`bias` is null", [&](auto& args) { args.tensors = missing; });
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

TEST(CApiCache, ACacheThatCannotBeIsNoError) {
  att_runtime_options options = {sizeof options, "cpu", "/proc/nonexistent/attune.db"};
  att_runtime* runtime = nullptr;
  EXPECT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  att_runtime_destroy(runtime);
}

}  // namespace
