// New keys and values into caches, and RoPE, by the CPU's kernels.
#include "tests/verification/append.hpp"

#include <gtest/gtest.h>

#include "runtime/jit/compiler.hpp"

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
    for (const std::int64_t page_size : {1, 16, 5}) {
      Problem problem = append_test::paged_problem(options, {1, 17, 0, 30, 1}, {40, 17, 0, 90, 1},
                                                   page_size, random_);
      problem.order = order;
      EXPECT_EQ(judge(problem), "") << static_cast<int>(order) << ", pages of " << page_size;
    }
  }
}

}  // namespace
}  // namespace attune
