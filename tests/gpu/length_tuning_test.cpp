// att_tune on a GPU with a host's own lengths of sequences, in pages and packed: they are a kind of
// their own, and launches get its plan. tests/cpu/length_tuning_test.cpp has several kinds.
#include <attune/attune.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/replayed.hpp"
#include "tests/unit/cache/fixtures.hpp"
#include "tests/verification/packed.hpp"

namespace attune::gpu_test {
namespace {

constexpr int kBatch = 8, kHeads = 8, kKvHeads = 2, kPage = 16, kMost = 2048;
// One sequence much longer than the others.
const std::vector<std::int32_t> kKeys = {100, 80, 2000, 1, 17, 128, 64, 99};
const std::vector<std::int32_t> kQueries(kBatch, 1);

class GpuLengthTuning : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
    const std::string file = directory_.file();
    att_runtime_options options = {};
    options.struct_size = sizeof options;
    options.device = "cuda:0";
    options.cache_file = file.c_str();
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
  }
  void TearDown() override {
    for (void* buffer : buffers_) bank().device().free(buffer);
    att_kernel_destroy(kernel_);
    att_spec_destroy(spec_);
    att_runtime_destroy(runtime_);
  }
  static KernelBank& bank() { return KernelBank::instance(); }
  void* upload(const void* data, std::size_t bytes) {
    buffers_.push_back(*bank().device().allocate(bytes));
    EXPECT_TRUE(bank().device().copy_to_device(buffers_.back(), data, bytes).ok());
    return buffers_.back();
  }
  // Tunes on the launch twice, then asks for the kernel that such launches get.
  void tune(const std::string& lines, att_forward_args& args, std::int64_t page_size) {
    ASSERT_EQ(att_spec_from_yaml(("attune: 1\n" + lines).c_str(), &spec_), ATT_OK)
        << att_last_error();
    att_tune_options options = {};
    options.struct_size = sizeof options;
    options.max_candidates = 2;
    options.command = "/proc/self/exe";
    std::string plan;
    for (const bool again : {false, true}) {
      att_tuning* tuning = nullptr;
      ASSERT_EQ(att_tune(runtime_, spec_, &args, &options, &tuning), ATT_OK) << att_last_error();
      att_tune_result result = {};
      result.struct_size = sizeof result;
      ASSERT_EQ(att_tuning_result(tuning, &result), ATT_OK) << att_last_error();
      EXPECT_EQ(result.state, ATT_TUNE_DONE);
      EXPECT_EQ(result.measured == 0, again) << result.measured << " were measured";
      EXPECT_GT(result.best_us, 0);
      plan = result.plan;
      att_tuning_destroy(tuning);
    }
    ASSERT_EQ(att_kernel_get(runtime_, spec_, &args.shape, &kernel_), ATT_OK) << att_last_error();
    EXPECT_STREQ(att_kernel_source(kernel_), "measured");
    ASSERT_EQ(att_runtime_tell_lengths(runtime_, kernel_, &args.shape, kKeys.data(), page_size),
              ATT_OK)
        << att_last_error();
    EXPECT_EQ(att_kernel_plan(kernel_), plan);
    const std::size_t bytes = att_kernel_workspace_bytes(kernel_, &args.shape) + 16;
    buffers_.push_back(*bank().device().allocate(bytes));
    args.workspace = buffers_.back();
    ASSERT_EQ(att_forward(kernel_, &args, nullptr), ATT_OK) << att_last_error();
    ASSERT_TRUE(bank().device().synchronize().ok());
  }

  const cache_testing::TemporaryDirectory directory_;
  att_runtime* runtime_ = nullptr;
  att_spec* spec_ = nullptr;
  att_kernel* kernel_ = nullptr;
  std::vector<void*> buffers_;
};

TEST_F(GpuLengthTuning, OfSequencesInPages) {
  const std::string lines = "name: t\ndtype: bf16\nhead_dim: 64\nlayout: paged\nmask: causal\n";
  const AttentionSpec spec = spec_of(lines);
  const ProblemShape shape{
      .batch = kBatch, .heads = kHeads, .kv_heads = kKvHeads, .q_len = kBatch, .kv_len = kMost};
  const HostProblem problem = paged::paged_problem(spec, shape, kQueries, kKeys, kPage, 3);
  Replayed launched(bank().device(), spec, problem);
  launched.put(problem);
  const att::LaunchParams& params = launched.params();
  const auto strides = [](const att::Strides& of) {
    return att_strides{of.batch, of.seq, of.head};
  };
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = {kBatch, kHeads, kKvHeads, kBatch, kMost};
  args.q = params.q, args.k = params.k, args.v = params.v, args.o = params.o;
  args.lse = params.lse;
  args.q_strides = strides(params.q_stride), args.o_strides = strides(params.o_stride);
  args.k_strides = strides(params.k_stride), args.v_strides = strides(params.v_stride);
  args.cu_q = params.sequences.cu_q, args.used_kv = params.sequences.used_kv;
  args.page_table = params.page_table.entries;
  args.pages_per_sequence = problem.pages.per_sequence;
  args.page_size = problem.pages.size, args.pages = problem.pages.count;
  tune(lines, args, kPage);
  if (HasFatalFailure()) return;
  const std::vector<Row> rows = all_rows(problem);
  const ForwardOracle exact = oracle_forward(spec, problem, rows, Arithmetic::kMatrixUnit);
  EXPECT_EQ(compare(launched.rows(problem, rows), exact).wrong, "");
}

TEST_F(GpuLengthTuning, OfPackedSequences) {
  constexpr std::int64_t kDim = 64;
  std::vector<std::int32_t> cu_q(kBatch + 1), cu_kv(kBatch + 1);
  std::iota(cu_q.begin(), cu_q.end(), 0);
  std::partial_sum(kKeys.begin(), kKeys.end(), cu_kv.begin() + 1);
  const std::int64_t keys = cu_kv.back();
  const std::vector<std::uint16_t> ones(static_cast<std::size_t>(keys * kKvHeads * kDim), 0x3F80);
  // V of a sequence is its number, and so is O.
  std::vector<std::uint16_t> v, expected;
  for (int sequence = 0; sequence < kBatch; ++sequence) {
    const float number = static_cast<float>(sequence + 1);
    const auto bf16 = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16);
    const auto rows = static_cast<std::size_t>(kKeys[static_cast<std::size_t>(sequence)]);
    v.insert(v.end(), rows * kKvHeads * kDim, bf16);
    expected.insert(expected.end(), kHeads * kDim, bf16);
  }
  att_forward_args args = {};
  args.struct_size = sizeof args;
  args.shape = {kBatch, kHeads, kKvHeads, kBatch, keys};
  args.q = upload(ones.data(), kBatch * kHeads * kDim * 2);
  args.k = upload(ones.data(), ones.size() * 2);
  args.v = upload(v.data(), v.size() * 2);
  std::vector<std::uint16_t> o(kBatch * kHeads * kDim, 0xFFFF);
  args.o = upload(o.data(), o.size() * 2);
  args.cu_q = static_cast<const std::int32_t*>(upload(cu_q.data(), cu_q.size() * 4));
  args.cu_kv = static_cast<const std::int32_t*>(upload(cu_kv.data(), cu_kv.size() * 4));
  tune("name: t\ndtype: bf16\nhead_dim: 64\nlayout: thd\nmask: causal\n", args, 0);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(bank().device().copy_to_host(o.data(), args.o, o.size() * 2).ok());
  EXPECT_EQ(o, expected);
}

}  // namespace
}  // namespace attune::gpu_test
