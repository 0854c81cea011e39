// The C interface on a GPU: graphs, streams, threads, strides of all kinds.
#include <attune/attune.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/gpu/driver.hpp"
#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {
namespace {

using Bf16 = std::uint16_t;

float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value} << 16); }

constexpr att_shape kShape = {2, 4, 2, 300, 300};
constexpr int kDim = 64;
constexpr std::size_t kQueries = 2 * 300 * 4 * kDim;
constexpr std::size_t kKeys = 2 * 300 * 2 * kDim;

// A document mask, so that a launch has a pre-pass and a workspace.
constexpr const char* kSpec =
    "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\ntensors: {doc: {dtype: int32, dims: [batch, "
    "kv_len]}}\n"
    "mask: causal and document(doc)\n";

class Launch : public testing::Test {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
    const att_runtime_options options = {sizeof options, "cuda:0", ""};
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
    ASSERT_EQ(att_spec_from_yaml(kSpec, &spec_), ATT_OK) << att_last_error();
    ASSERT_EQ(att_kernel_get(runtime_, spec_, &kShape, &kernel_), ATT_OK) << att_last_error();
    documents_.resize(600);
    for (int i = 0; i < 600; ++i) documents_[static_cast<std::size_t>(i)] = i % 300 / 90;
    tensors_[0] = upload(documents_.data(), documents_.size() * 4);
    q_ = random_values(kQueries);
    k_ = random_values(kKeys);
    v_ = random_values(kKeys);
  }
  void TearDown() override {
    for (void* buffer : buffers_) device().free(buffer);
    att_kernel_destroy(kernel_);
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }

  static Device& device() { return KernelBank::instance().device(); }
  void* allocate(std::size_t bytes) {
    buffers_.push_back(*device().allocate(bytes));
    EXPECT_TRUE(device().fill(buffers_.back(), 0xFF, bytes).ok());
    return buffers_.back();
  }
  void* upload(const void* data, std::size_t bytes) {
    void* buffer = allocate(bytes);
    EXPECT_TRUE(device().copy_to_device(buffer, data, bytes).ok());
    return buffer;
  }
  void* upload(const std::vector<Bf16>& values) { return upload(values.data(), values.size() * 2); }
  std::vector<Bf16> random_values(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(count);
    for (Bf16& x : values)
      x = static_cast<Bf16>(std::bit_cast<std::uint32_t>(normal(random_)) >> 16);
    return values;
  }
  // Contiguous copies of the inputs, outputs of their own.
  att_forward_args arguments() {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = kShape;
    args.q = upload(q_);
    args.k = upload(k_);
    args.v = upload(v_);
    args.o = allocate(kQueries * 2);
    args.workspace = allocate(att_kernel_workspace_bytes(kernel_, &kShape) + 16);
    args.tensors = tensors_;
    return args;
  }
  std::vector<Bf16> result(const att_forward_args& args) {
    std::vector<Bf16> o(kQueries);
    const Status done = device().synchronize();
    EXPECT_TRUE(done.ok()) << render(done.error());
    EXPECT_TRUE(device().copy_to_host(o.data(), args.o, o.size() * 2).ok());
    return o;
  }
  std::vector<Bf16> launch(const att_forward_args& args, void* stream = nullptr) {
    EXPECT_EQ(att_forward(kernel_, &args, stream), ATT_OK) << att_last_error();
    return result(args);
  }

  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
  att_kernel* kernel_ = nullptr;
  const void* tensors_[1] = {};
  std::vector<std::int32_t> documents_;
  std::vector<Bf16> q_, k_, v_;
  std::vector<void*> buffers_;
  std::mt19937 random_{5};
};

TEST_F(Launch, IsCapturedIntoAGraph) {
  const att_forward_args args = arguments();
  const std::vector<Bf16> expected = launch(args);
  const Stream stream;
  att_status status = ATT_OK;
  const Graph graph(stream, [&](CUstream on) { status = att_forward(kernel_, &args, on); });
  ASSERT_EQ(status, ATT_OK) << att_last_error();
  for (int replay = 0; replay < 2; ++replay) {
    ASSERT_TRUE(device().fill(args.o, 0xFF, kQueries * 2).ok());
    ASSERT_TRUE(device().synchronize().ok());
    graph.launch(stream);
    EXPECT_EQ(result(args), expected);
  }
}

TEST_F(Launch, CodeIsReplacedInTheBackgroundWhileAGraphIsBeingCaptured) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("attune_capture_" + std::to_string(getpid()));
  std::filesystem::create_directories(directory);
  const std::string file = (directory / "cache.db").string();
  const att_runtime_options options = {sizeof options, "cuda:0", file.c_str(), 1};
  att_runtime* runtime = nullptr;
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_runtime_create(&options, &runtime), ATT_OK) << att_last_error();
  ASSERT_EQ(att_kernel_get(runtime, spec_, &kShape, &kernel), ATT_OK) << att_last_error();
  att_runtime_wait(runtime);
  const std::string model = att_kernel_plan(kernel);
  const att_forward_args before = arguments(), after = arguments();
  const std::vector<Bf16> expected = launch(arguments());

  // What a sweep brings meanwhile: a winner without its code.
  const AttentionSpec spec = *parse_spec(kSpec, "");
  const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 300};
  std::string tuned;
  for (const KernelPlan& plan : legal_plans(spec, Family::kSm80, device().facts())) {
    if (tuned.empty() && to_string(plan) != model) tuned = to_string(plan);
  }
  auto store = open_store(file);
  const Stream stream;
  att_status first = ATT_OK, second = ATT_OK;
  bool recorded = false;
  std::string replaced;
  const Graph graph(stream, [&](CUstream on) {
    first = att_forward(kernel, &before, on);
    recorded = store.ok() && (*store)
                                 ->record({.spec_hash = spec_hash(spec),
                                           .device = device().identity(),
                                           .shape = shape,
                                           .protocol = std::string(kMeasurementProtocol)},
                                          {.plan = tuned,
                                           .build_digest = "elsewhere",
                                           .median_us = 1,
                                           .spread_us = 0.1,
                                           .samples = 10})
                                 .ok();
    att_runtime_refresh(runtime);
    att_runtime_wait(runtime);  // compiled, loaded and in place, under the capture
    replaced = att_kernel_plan(kernel);
    second = att_forward(kernel, &after, on);
  });
  EXPECT_TRUE(recorded);
  EXPECT_EQ(replaced, tuned);
  ASSERT_EQ(first, ATT_OK);
  ASSERT_EQ(second, ATT_OK) << att_last_error();
  // The graph keeps the code that it captured, also when its kernel is gone.
  att_runtime_destroy(runtime);
  graph.launch(stream);
  EXPECT_EQ(result(before), expected);
  const std::vector<Bf16> other = result(after);
  for (std::size_t i = 0; i < other.size(); ++i) {
    ASSERT_NEAR(to_float(other[i]), to_float(expected[i]), 0.02) << i;
  }
  att_kernel_destroy(kernel);
  std::filesystem::remove_all(directory);
}

TEST_F(Launch, FromManyThreadsAndStreamsAtOnce) {
  const std::vector<Bf16> expected = launch(arguments());
  std::vector<att_forward_args> args;
  std::array<Stream, 4> streams;
  for (std::size_t i = 0; i < streams.size(); ++i) args.push_back(arguments());
  ASSERT_TRUE(device().synchronize().ok());
  std::vector<att_status> statuses(4, ATT_OK);
  {
    // These threads have no current context.
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (int launch = 0; launch < 50 && statuses[i] == ATT_OK; ++launch) {
          statuses[i] = att_forward(kernel_, &args[i], streams[i].get());
        }
      });
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(statuses[i], ATT_OK);
    EXPECT_EQ(result(args[i]), expected);
  }
}

TEST_F(Launch, TakesSlicesOfAPackedProjection) {
  // [batch, seq, q heads + k heads + v heads, dim], as one matrix product writes it.
  const std::vector<Bf16> expected = launch(arguments());
  std::vector<Bf16> packed(2 * 300 * 8 * kDim);
  for (std::size_t token = 0; token < 600; ++token) {
    const auto put = [&](const std::vector<Bf16>& from, std::size_t heads, std::size_t at) {
      std::copy_n(&from[token * heads * kDim], heads * kDim, &packed[(token * 8 + at) * kDim]);
    };
    put(q_, 4, 0);
    put(k_, 2, 4);
    put(v_, 2, 6);
  }
  att_forward_args args = arguments();
  const auto* base = static_cast<const Bf16*>(upload(packed));
  args.q = base;
  args.k = base + 4 * kDim;
  args.v = base + 6 * kDim;
  args.q_strides = args.k_strides = args.v_strides = {300 * 8 * kDim, 8 * kDim, kDim};
  EXPECT_EQ(launch(args), expected);
}

TEST_F(Launch, TakesKeysThatAllBatchesShare) {
  // A stride of zero: TMA cannot, so another plan may run; the numbers are those of a real copy.
  std::copy_n(k_.begin(), kKeys / 2, k_.begin() + kKeys / 2);
  const std::vector<Bf16> expected = launch(arguments());
  att_forward_args args = arguments();
  args.k_strides = {0, 2 * kDim, kDim};
  const std::vector<Bf16> shared = launch(args);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    ASSERT_NEAR(to_float(shared[i]), to_float(expected[i]), 0.02) << i;
  }
}

TEST_F(Launch, TakesATensorAlignedToItsElementsOnly) {
  const std::vector<Bf16> expected = launch(arguments());
  std::vector<std::int32_t> padded = documents_;
  padded.insert(padded.begin(), 7);
  const std::int64_t sizes[] = {2, 300};
  const att_tensor view = {
      static_cast<const std::int32_t*>(upload(padded.data(), padded.size() * 4)) + 1, sizes,
      nullptr, ATT_INT32, 2};
  att_forward_args args = arguments();
  args.tensors = nullptr;
  args.tensor_views = &view;
  args.tensor_view_count = 1;
  args.workspace_bytes = att_kernel_workspace_bytes(kernel_, &kShape);
  EXPECT_EQ(launch(args), expected);
}

// With dO = 1, a key's dV is the sum of its weights, and the weights of a query's row sum to one.
TEST_F(Launch, GoesBackward) {
  att_forward_args forward = arguments();
  forward.lse = static_cast<float*>(allocate(2 * 4 * 300 * sizeof(float)));
  ASSERT_EQ(att_forward(kernel_, &forward, nullptr), ATT_OK) << att_last_error();
  att_kernel* kernel = nullptr;
  ASSERT_EQ(att_kernel_get_for_pass(runtime_, spec_, &kShape, ATT_PASS_BACKWARD, &kernel), ATT_OK)
      << att_last_error();
  EXPECT_EQ(att_forward(kernel, &forward, nullptr), ATT_BAD_INPUT);
  const std::int64_t sizes[] = {2, 300};
  const att_tensor view = {tensors_[0], sizes, nullptr, ATT_INT32, 2};
  att_backward_args args = {};
  args.struct_size = sizeof args;
  args.shape = kShape;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.o = forward.o;
  args.lse = forward.lse;
  args.d_o = upload(std::vector<Bf16>(kQueries, 0x3F80));
  args.d_q = allocate(kQueries * 2);
  args.d_k = allocate(kKeys * 2);
  args.d_v = allocate(kKeys * 2);
  args.workspace_bytes = att_kernel_workspace_bytes(kernel, &kShape);
  args.workspace = allocate(args.workspace_bytes + 16);
  args.tensor_views = &view;
  args.tensor_view_count = 1;
  const auto expect_all_weights = [&] {
    ASSERT_EQ(att_backward(kernel, &args, nullptr), ATT_OK) << att_last_error();
    ASSERT_TRUE(device().synchronize().ok());
    std::vector<Bf16> d_v(kKeys);
    ASSERT_TRUE(device().copy_to_host(d_v.data(), args.d_v, kKeys * 2).ok());
    ASSERT_TRUE(device().fill(args.d_v, 0xFF, kKeys * 2).ok());
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t column = 0; column < 2 * kDim; ++column) {  // of both K/V heads
        double sum = 0;
        for (std::size_t key = 0; key < 300; ++key) {
          sum += to_float(d_v[(b * 300 + key) * 2 * kDim + column]);
        }
        ASSERT_NEAR(sum, 600, 3) << b << " " << column;  // two query heads of 300 rows
      }
    }
  };
  expect_all_weights();
  // One row of dO for all, which TMA cannot walk: another plan may run, in the same workspace.
  for (const att_strides& strides : {att_strides{0, 0, kDim}, {kDim, 0, 0}}) {
    SCOPED_TRACE(strides.head);
    args.d_o_strides = strides;
    args.d_o = upload(std::vector<Bf16>(300 * 4 * kDim, 0x3F80));
    expect_all_weights();
  }
  att_kernel_destroy(kernel);
}

TEST_F(Launch, AnEmptyBatchWritesNothing) {
  att_forward_args args = arguments();
  args.shape.batch = 0;
  EXPECT_EQ(launch(args), std::vector<Bf16>(kQueries, 0xFFFF));
  args.shape = kShape;
  args.shape.q_len = 0;
  args.q = args.k = args.v = nullptr;
  EXPECT_EQ(launch(args), std::vector<Bf16>(kQueries, 0xFFFF));
}

TEST_F(Launch, AMissingWorkspaceIsRefused) {
  att_forward_args args = arguments();
  args.workspace = nullptr;
  EXPECT_EQ(att_forward(kernel_, &args, nullptr), ATT_BAD_INPUT);
}

}  // namespace
}  // namespace attune::gpu_test
