// att_tune on a GPU, with what a host has in device memory: documents of its own decide which tiles
// live. tests/cpu/host_tuning_test.cpp has what else can become of a search.
#include <attune/attune.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tuner/measure/backward_problem.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kLines =
    "name: hosted\ndtype: bf16\nhead_dim: 64\nlayout: bhsd\nmask: document(doc)\n"
    "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\npasses: [forward, backward]\n";
constexpr ProblemShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 1024, .kv_len = 1024};
constexpr att_shape kHostsShape = {1, 4, 2, 1024, 1024};
constexpr int kDocument = 128;

class GpuHostTuning : public testing::Test {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const std::string file = directory_.file();
    att_runtime_options options = {};
    options.struct_size = sizeof options;
    options.device = "cuda:0";
    options.cache_file = file.c_str();
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
    const std::string yaml = std::string("attune: 1\n") + kLines;
    ASSERT_EQ(att_spec_from_yaml(yaml.c_str(), &hosts_spec_), ATT_OK) << att_last_error();
    host_ = random_problem(spec_, kShape, 3);
    auto& documents = host_.tensors.front().values;
    for (std::size_t i = 0; i < documents.size(); ++i)
      documents[i] = static_cast<double>(i / kDocument);
  }
  void TearDown() override {
    for (att_kernel* kernel : kernels_) att_kernel_destroy(kernel);
    att_spec_destroy(hosts_spec_);
    att_runtime_destroy(runtime_);
  }

  // With this program as the command.
  static att_tune_options options(int candidates) {
    att_tune_options options = {};
    options.struct_size = sizeof options;
    options.max_candidates = candidates;
    options.command = "/proc/self/exe";
    return options;
  }
  // Null after a failure.
  att_kernel* served(att_pass pass) {
    att_kernel* kernel = nullptr;
    EXPECT_EQ(att_kernel_get_for_pass(runtime_, hosts_spec_, &kHostsShape, pass, &kernel), ATT_OK)
        << att_last_error();
    if (kernel != nullptr) kernels_.push_back(kernel);
    return kernel;
  }
  // What every launch has in common; strides are zero, as all is contiguous.
  template <typename Args>
  Args inputs(const att::LaunchParams& params) {
    tensors_[0] = params.tensors[0].data;
    Args args = {};
    args.struct_size = sizeof args;
    args.shape = kHostsShape;
    args.q = params.q;
    args.k = params.k;
    args.v = params.v;
    args.o = params.o;
    args.lse = params.lse;
    return args;
  }
  static std::vector<std::byte> bytes_at(const void* data, std::size_t bytes) {
    std::vector<std::byte> found(bytes);
    EXPECT_TRUE(KernelBank::instance().device().copy_to_host(found.data(), data, bytes).ok());
    return found;
  }
  static std::size_t matrix_bytes(std::int64_t heads) {
    return static_cast<std::size_t>(heads * kShape.q_len * 64 * 2);
  }
  // Of a search that ran to its end: what it says, and that launches get its winner.
  void expect_served(att_tuning* tuning, att_pass pass) {
    att_tune_result result = {};
    result.struct_size = sizeof result;
    ASSERT_EQ(att_tuning_result(tuning, &result), ATT_OK) << att_last_error();
    EXPECT_EQ(result.state, ATT_TUNE_DONE);
    EXPECT_GT(result.measured, 0);
    EXPECT_GT(result.best_us, 0);
    EXPECT_GT(result.before_us, 0) << "what was served before took part";
    // Of eight times eight tiles those on the diagonal live, and all of each.
    EXPECT_EQ(result.live_share, 0.125);
    EXPECT_EQ(result.full_share, 0.125);
    att_kernel* const kernel = served(pass);
    ASSERT_NE(kernel, nullptr);
    EXPECT_STREQ(att_kernel_plan(kernel), result.plan);
    EXPECT_STREQ(att_kernel_source(kernel), "measured");
  }

  const AttentionSpec spec_ = spec_of(kLines);
  const cache_testing::TemporaryDirectory directory_;
  HostProblem host_;
  att_runtime* runtime_ = nullptr;
  att_spec* hosts_spec_ = nullptr;
  const void* tensors_[1] = {};
  std::vector<att_kernel*> kernels_;
};

TEST_F(GpuHostTuning, FindsAPlanOnTheHostsDataAndServesIt) {
  Device& device = KernelBank::instance().device();
  const auto problem = DeviceProblem::upload(device, spec_, host_);
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  ASSERT_TRUE((*problem)->poison().ok());
  auto args = inputs<att_forward_args>((*problem)->params());
  args.tensors = tensors_;
  const std::size_t lse_bytes = static_cast<std::size_t>(kShape.heads * kShape.q_len) * 4;
  const std::vector<std::byte> q = bytes_at(args.q, matrix_bytes(kShape.heads)),
                               o = bytes_at(args.o, matrix_bytes(kShape.heads)),
                               lse = bytes_at(args.lse, lse_bytes);

  att_tuning* tuning = nullptr;
  att_tune_options none = options(0);
  none.budget_ms = 1e-3;
  ASSERT_EQ(att_tune(runtime_, hosts_spec_, &args, &none, &tuning), ATT_OK) << att_last_error();
  att_tune_result result = {};
  result.struct_size = sizeof result;
  ASSERT_EQ(att_tuning_result(tuning, &result), ATT_OK) << att_last_error();
  EXPECT_EQ(result.state, ATT_TUNE_STOPPED) << "the budget is over at once";
  EXPECT_EQ(result.measured, 0);
  att_tuning_destroy(tuning);

  const att_tune_options few = options(2);
  ASSERT_EQ(att_tune(runtime_, hosts_spec_, &args, &few, &tuning), ATT_OK) << att_last_error();
  EXPECT_EQ(bytes_at(args.q, q.size()), q);
  EXPECT_EQ(bytes_at(args.o, o.size()), o);
  EXPECT_EQ(bytes_at(args.lse, lse.size()), lse);
  const Status intact = (*problem)->check_canaries();
  EXPECT_TRUE(intact.ok()) << render(intact.error());
  expect_served(tuning, ATT_PASS_FORWARD);
  att_tuning_destroy(tuning);
  if (HasFailure()) return;

  // And it is right on these data.
  att_kernel* const kernel = served(ATT_PASS_FORWARD);
  const auto workspace =
      DeviceBuffer::make(device, att_kernel_workspace_bytes(kernel, &kHostsShape) + 16);
  ASSERT_TRUE(workspace.ok()) << render(workspace.error());
  args.workspace = workspace->data();
  ASSERT_EQ(att_forward(kernel, &args, nullptr), ATT_OK) << att_last_error();
  ASSERT_TRUE(device.synchronize().ok());
  const std::vector<Row> rows = sample_rows(kShape, kMaxRows, 1);
  const auto output = (*problem)->download(rows);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_EQ(compare(*output, oracle_forward(spec_, host_, rows)).wrong, "");
}

TEST_F(GpuHostTuning, FindsAPlanOfTheBackwardPass) {
  KernelBank& bank = KernelBank::instance();
  const auto forward_plan = default_plan(spec_, kShape, bank.device().facts());
  ASSERT_TRUE(forward_plan.ok()) << render(forward_plan.error());
  const auto forward = bank.get(spec_, *forward_plan);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const auto problem = BackwardProblem::make(bank.device(), spec_, host_, **forward, 3);
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  ASSERT_TRUE((*problem)->poison().ok());
  const att::LaunchParams& params = (*problem)->params();
  auto args = inputs<att_backward_args>(params);
  const std::int64_t sizes[2] = {kShape.batch, kShape.kv_len};
  const att_tensor view = {
      .data = tensors_[0], .sizes = sizes, .strides = nullptr, .dtype = ATT_INT32, .ndim = 2};
  args.tensor_views = &view;
  args.tensor_view_count = 1;
  args.d_o = params.d_o;
  args.d_lse = params.d_lse;
  args.d_q = params.d_q;
  args.d_k = params.d_k;
  args.d_v = params.d_v;
  att_tuning* tuning = nullptr;
  const att_tune_options few = options(2);
  ASSERT_EQ(att_tune_backward(runtime_, hosts_spec_, &args, &few, &tuning), ATT_OK)
      << att_last_error();
  const auto is_untouched = [](const void* data, std::size_t bytes) {
    return std::ranges::all_of(bytes_at(data, bytes),
                               [](std::byte b) { return b == std::byte{kPoison}; });
  };
  EXPECT_TRUE(is_untouched(args.d_q, matrix_bytes(kShape.heads)));
  EXPECT_TRUE(is_untouched(args.d_k, matrix_bytes(kShape.kv_heads)));
  EXPECT_TRUE(is_untouched(args.d_v, matrix_bytes(kShape.kv_heads)));
  const Status intact = (*problem)->check_canaries();
  EXPECT_TRUE(intact.ok()) << render(intact.error());
  expect_served(tuning, ATT_PASS_BACKWARD);
  att_tuning_destroy(tuning);
  if (HasFailure()) return;

  att_kernel* const kernel = served(ATT_PASS_BACKWARD);
  const auto workspace =
      DeviceBuffer::make(bank.device(), att_kernel_workspace_bytes(kernel, &kHostsShape) + 16);
  ASSERT_TRUE(workspace.ok()) << render(workspace.error());
  args.workspace = workspace->data();
  ASSERT_EQ(att_backward(kernel, &args, nullptr), ATT_OK) << att_last_error();
  const auto gradients = (*problem)->download();
  ASSERT_TRUE(gradients.ok()) << render(gradients.error());
  const BackwardOracle oracle = oracle_backward(spec_, host_, (*problem)->output_gradients());
  EXPECT_EQ(wrong_gradient(*gradients, oracle), "");
}

}  // namespace
}  // namespace attune::gpu_test
