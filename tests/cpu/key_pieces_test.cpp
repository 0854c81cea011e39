// Items whose keys are shared out among threads, against the fp64 oracle.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cpu/cpu_test.hpp"
#include "tests/cpu/harness.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune {
namespace {

constexpr int kPieces = 8;

class CpuKeyPieces : public testing_support::CpuTest {
 protected:
  static AttentionSpec spec_of(const std::string& yaml) {
    auto spec = parse_spec("attune: 1\nname: test\n" + yaml, "test.yaml");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    return spec.ok() ? std::move(spec).value() : AttentionSpec{};
  }

  // A plan of so many pieces; the host's processors may be too few for the tuner to want it.
  KernelPlan plan_of(const AttentionSpec& spec, int pieces) const {
    DeviceFacts many = device_->facts();
    many.processor_count = 16;
    const std::vector<KernelPlan> plans = legal_plans(spec, Family::kCpu, many);
    const auto found = std::ranges::find_if(plans, [&](const KernelPlan& plan) {
      return std::get<CpuPlan>(plan.tile).pieces == pieces;
    });
    EXPECT_NE(found, plans.end());
    return found == plans.end() ? KernelPlan{} : *found;
  }

  void check(const std::string& yaml, const ProblemShape& shape) {
    const AttentionSpec spec = spec_of(yaml);
    SCOPED_TRACE(yaml + to_string(shape));
    const LoadedKernel* kernel = kernel_of(spec, plan_of(spec, kPieces));
    ASSERT_NE(kernel, nullptr);
    const HostProblem problem = random_problem(spec, shape, ++seed_);
    const auto output = testing_support::run_kernel(*device_, *kernel, spec, problem);
    ASSERT_TRUE(output.ok()) << render(output.error());
    EXPECT_EQ(compare(*output, oracle_forward(spec, problem, Arithmetic::kVector)).wrong, "");
  }

  std::uint64_t seed_ = 40;
};

// Fewer tiles than pieces, rows without live keys, keys between which nothing is live.
TEST_F(CpuKeyPieces, AreMergedIntoWhatTheOracleSays) {
  for (const std::int64_t kv_len : {1, 130, 5000}) {
    check("dtype: bf16\nhead_dim: 64\n",
          {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = kv_len});
    check("dtype: fp32\nhead_dim: 40\nmask: sliding_window(300) or kv_idx < 4\nsink: 0.5 * h\n",
          {.batch = 2, .heads = 6, .kv_heads = 2, .q_len = 3, .kv_len = kv_len});
  }
  check(
      "dtype: fp16\nhead_dim: {qk: 80, v: 128}\nmask: kv_idx % 700 < 5 and q_idx != 1\n"
      "score: 30 * tanh(score / 30) + 0.01 * h * (kv_idx - q_idx)\n",
      {.batch = 1, .heads = 5, .kv_heads = 1, .q_len = 2, .kv_len = 3000});
  check("dtype: fp32\nhead_dim: 64\ndropout: 0.2\n",
        {.batch = 1, .heads = 2, .kv_heads = 2, .q_len = 5, .kv_len = 1500});
}

// Threads come in any order.
TEST_F(CpuKeyPieces, AreMergedInOneOrder) {
  const AttentionSpec spec = spec_of("dtype: fp32\nhead_dim: 64\n");
  const LoadedKernel* kernel = kernel_of(spec, plan_of(spec, kPieces));
  ASSERT_NE(kernel, nullptr);
  const HostProblem problem =
      random_problem(spec, {.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 4000}, 3);
  const auto first = testing_support::run_kernel(*device_, *kernel, spec, problem);
  ASSERT_TRUE(first.ok()) << render(first.error());
  for (int i = 0; i < 50; ++i) {
    const auto again = testing_support::run_kernel(*device_, *kernel, spec, problem);
    ASSERT_TRUE(again.ok()) << render(again.error());
    ASSERT_EQ(again->o, first->o);
    ASSERT_EQ(again->lse, first->lse);
  }
}

TEST_F(CpuKeyPieces, OfPackedSequences) {
  const AttentionSpec spec = spec_of("dtype: bf16\nhead_dim: 64\nlayout: thd\nmask: causal\n");
  const LoadedKernel* kernel = kernel_of(spec, plan_of(spec, kPieces));
  ASSERT_NE(kernel, nullptr);
  packed::check_random(*device_, *kernel, spec, Arithmetic::kVector, 6, ++seed_);
  packed::check_lengths(*device_, *kernel, spec, Arithmetic::kVector);
}

TEST_F(CpuKeyPieces, OfSequencesInPages) {
  const AttentionSpec spec = spec_of("dtype: bf16\nhead_dim: 64\nlayout: paged\nmask: causal\n");
  const LoadedKernel* kernel = kernel_of(spec, plan_of(spec, kPieces));
  ASSERT_NE(kernel, nullptr);
  paged::check_cases(*device_, *kernel, spec,
                     paged::paged_cases(spec, Arithmetic::kVector, 3, ++seed_));
}

// One token on a long past: more pieces than items, and as few as there is work for.
TEST_F(CpuKeyPieces, AreWhatTheCostModelWantsWhereItemsAreFew) {
  const AttentionSpec spec = spec_of("dtype: bf16\nhead_dim: 128\n");
  DeviceFacts facts = device_->facts();
  facts.processor_count = 16;
  const auto pieces = [&](const ProblemShape& shape) {
    const auto plan = default_plan(spec, shape, facts);
    EXPECT_TRUE(plan.ok());
    return plan.ok() ? std::get<CpuPlan>(plan->tile).pieces : 0;
  };
  EXPECT_GE(pieces({.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 1, .kv_len = 65536}), 16);
  EXPECT_EQ(pieces({.batch = 8, .heads = 64, .kv_heads = 64, .q_len = 1, .kv_len = 8192}), 1);
  EXPECT_EQ(pieces({.batch = 1, .heads = 16, .kv_heads = 16, .q_len = 2048, .kv_len = 2048}), 1);
  EXPECT_EQ(pieces({.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 1, .kv_len = 64}), 1);
}

}  // namespace
}  // namespace attune
