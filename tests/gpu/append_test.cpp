// New keys and values into caches, and RoPE, on a GPU: all layouts and orders, whatever stands in
// tables, and in a graph.
#include <gtest/gtest.h>

#include <optional>

#include "tests/gpu/driver.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/append_checks.hpp"

namespace attune::gpu_test {
namespace {

using append_test::Problem;

class GpuAppend : public testing::Test {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
    const att_runtime_options options = {sizeof options, "cuda:0", ""};
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
  }
  void TearDown() override { att_runtime_destroy(runtime_); }
  std::string judge(const Problem& problem, const append_test::LaunchFunction& launch = {}) {
    return append_test::judge(KernelBank::instance().device(), runtime_, problem, ++seed_, launch);
  }

  std::mt19937_64 random_{11};
  std::uint64_t seed_ = 0;
  att_runtime* runtime_ = nullptr;
};

TEST_F(GpuAppend, PromptsChunksAndSingleTokensIntoPages) {
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_HALF);
  for (const append_test::Order order : append_test::kOrders) {
    for (const std::int64_t page_size : {1, 16, 5, 64}) {
      Problem problem = append_test::paged_problem(options, {1, 170, 0, 30, 1},
                                                   {400, 170, 0, 90, 1}, page_size, random_);
      problem.order = order;
      problem.shape.heads = 32;
      problem.shape.kv_heads = 8;
      EXPECT_EQ(judge(problem), "") << static_cast<int>(order) << ", pages of " << page_size;
    }
  }
}

TEST_F(GpuAppend, EveryKernelIntoEveryLayout) {
  for (const att_append_options& options : append_test::various_options()) {
    for (const int layout : {ATT_PAGED, ATT_THD, ATT_BSHD}) {
      for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(judge(append_test::random_problem(options, layout, random_)), "")
            << "dtype " << options.dtype << ", rope " << options.rope << ", " << options.head_dim_qk
            << ", layout " << layout << ", problem " << i;
      }
    }
  }
}

TEST_F(GpuAppend, FarPositionsAreAsExact) {
  const auto options = append_test::options_of(ATT_FP32, ATT_ROPE_INTERLEAVED, 8);
  EXPECT_EQ(judge(append_test::far_problem(options, random_)), "");
}

// Pages that no table names, rows that are no new token's and what lies around the buffers.
TEST_F(GpuAppend, NothingOutsideOfTheCacheIsWritten) {
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_HALF);
  int number = 0;
  for (const Problem& problem : append_test::hostile_problems(options, random_)) {
    EXPECT_EQ(judge(problem), "") << "problem " << number++ << ", layout " << problem.layout;
  }
}

// More sequences than a warp has lanes, one token each: what a decode step is.
TEST_F(GpuAppend, ManySequences) {
  const auto options = append_test::options_of(ATT_FP16, ATT_ROPE_INTERLEAVED, 64);
  std::vector<std::int32_t> tokens(1000, 1), keys(1000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int32_t>(1 + i % 37);
  for (std::size_t i = 0; i < tokens.size(); i += 3) tokens[i] = 0;
  EXPECT_EQ(judge(append_test::paged_problem(options, tokens, keys, 16, random_)), "");
}

// A launch is captured into a graph, which does what it would have done.
TEST_F(GpuAppend, IsCaptured) {
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_HALF);
  const Problem problem = append_test::paged_problem(options, {1, 1, 20}, {33, 1, 64}, 16, random_);
  const Stream stream;
  std::optional<Graph> graph;
  const auto captured = [&](const att_append_kernel* kernel, const att_append_args* args) {
    att_status status = ATT_OK;
    graph.emplace(stream, [&](CUstream on) { status = att_append(kernel, args, on); });
    graph->launch(stream);
    return status;
  };
  EXPECT_EQ(judge(problem, captured), "");
}

}  // namespace
}  // namespace attune::gpu_test
