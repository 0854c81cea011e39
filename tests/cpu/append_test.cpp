// New keys and values into caches, and RoPE, by the CPU's kernels.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/jit/compiler.hpp"
#include "tests/verification/append_checks.hpp"

namespace attune {
namespace {

using append_test::Problem;

class CpuAppend : public testing::Test {
 protected:
  void SetUp() override {
    const auto compiler = open_llvm_compiler();
    if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
    auto device = open_cpu_device();
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = *std::move(device);
    const att_runtime_options options = {sizeof options, "cpu", ""};
    ASSERT_EQ(att_runtime_create(&options, &runtime_), ATT_OK) << att_last_error();
  }
  void TearDown() override { att_runtime_destroy(runtime_); }
  std::string judge(const Problem& problem) {
    return append_test::judge(*device_, runtime_, problem, ++seed_);
  }

  std::mt19937_64 random_{7};
  std::uint64_t seed_ = 0;
  std::unique_ptr<Device> device_;
  att_runtime* runtime_ = nullptr;
};

TEST_F(CpuAppend, PromptsChunksAndSingleTokensIntoPages) {
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_HALF);
  for (const append_test::Order order : append_test::kOrders) {
    for (const std::int64_t page_size : {1, 5}) {
      Problem problem = append_test::paged_problem(options, {1, 17, 0, 30, 1}, {40, 17, 0, 90, 1},
                                                   page_size, random_);
      problem.order = order;
      EXPECT_EQ(judge(problem), "") << static_cast<int>(order) << ", pages of " << page_size;
    }
  }
}

TEST_F(CpuAppend, EveryKernelIntoEveryLayout) {
  for (const att_append_options& options : append_test::various_options()) {
    for (const int layout : {ATT_PAGED, ATT_THD, ATT_BSHD}) {
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(judge(append_test::random_problem(options, layout, random_)), "")
            << "dtype " << options.dtype << ", rope " << options.rope << ", " << options.head_dim_qk
            << ", layout " << layout << ", problem " << i;
      }
    }
  }
}

// fp32's own error is all that is left at the millionth position.
TEST_F(CpuAppend, FarPositionsAreAsExact) {
  const auto options = append_test::options_of(ATT_FP32, ATT_ROPE_INTERLEAVED, 8);
  EXPECT_EQ(judge(append_test::far_problem(options, random_)), "");
}

TEST_F(CpuAppend, NothingOutsideOfTheCacheIsWritten) {
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_HALF);
  int number = 0;
  for (const Problem& problem : append_test::hostile_problems(options, random_)) {
    EXPECT_EQ(judge(problem), "") << "problem " << number++ << ", layout " << problem.layout;
  }
}

// Another process finds the code that one has made, and compiles nothing.
TEST_F(CpuAppend, CodeIsKeptInTheCache) {
  // Code is run from folders alone that nobody else can write.
  std::string folder = testing::TempDir() + "attune_append_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/cache.db";
  const auto options = append_test::options_of(ATT_BF16, ATT_ROPE_NONE, 64);
  const Problem problem = append_test::paged_problem(options, {1, 5}, {9, 5}, 4, random_);
  for (const char* counters : {"\"compiles\": 1,", "\"compiles\": 0,"}) {
    const att_runtime_options with_cache = {sizeof with_cache, "cpu", file.c_str()};
    att_runtime* runtime = nullptr;
    ASSERT_EQ(att_runtime_create(&with_cache, &runtime), ATT_OK) << att_last_error();
    EXPECT_EQ(append_test::judge(*device_, runtime, problem, 1), "");
    std::string status(att_runtime_status(runtime, nullptr, 0), ' ');
    att_runtime_status(runtime, status.data(), status.size());
    EXPECT_NE(status.find(counters), status.npos) << counters << "\n" << status;
    att_runtime_destroy(runtime);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace attune
