// The sm80 family's backward plans that add up dQ by key tiles, whoever has which keys: against the
// definition in fp64, over dtypes, head dims, masks, heads and lengths, dense and packed; and
// faults planted in how dS, its product and the sums go together. The plans are not the legal ones
// of Hopper, which has sums of its own, and run there all the same.
#include <fmt/format.h>

#include "tests/gpu/judge.hpp"
#include "tests/gpu/planting.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune::gpu_test {
namespace {

constexpr const char* kTiles[] = {
    "w4 t32 s2 sums",       "w8 t32 s3 sums",       "w4 t64 s2 sums",
    "w8 t64 s2 sums pairs", "w4 t64 s2 sums pairs", "w4 t32 s2 sums wide",
    "w8 t32 s2 sums fours", "w4 t32 s2 sums fours", "w8 t64 s2 sums fours"};

// Lengths within a tile, at its end and beyond; queries without keys; keys without queries.
constexpr ProblemShape kShapes[] = {
    {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 389},
    {.batch = 1, .heads = 3, .kv_heads = 3, .q_len = 1, .kv_len = 130},
    {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 517, .kv_len = 128}};

constexpr const char* kSpecs[] = {
    "dtype: bf16\nhead_dim: 128\nmask: causal",
    "dtype: fp16\nhead_dim: 64",
    "dtype: bf16\nhead_dim: 64\nmask: causal and q_pos - kv_idx < 70\ndropout: 0.2",
    "dtype: bf16\nhead_dim: 256\nmask: causal and q_pos - kv_idx < 300",
    "dtype: fp16\nhead_dim: 256\nmask: causal\nscore: 20 * tanh(score / 20)\ndropout: 0.1",
    "dtype: bf16\nhead_dim: {qk: 96, v: 80}\nmask: causal\nscore: 20 * tanh(score / 20)",
    "dtype: fp16\nhead_dim: {qk: 128, v: 64}\nmask: kv_idx < 40 or kv_idx > 300\nsink: sinks[h]\n"
    "tensors: {sinks: {dtype: float32, dims: [heads], grad: true}}",
    "dtype: bf16\nhead_dim: {qk: 40, v: 24}\nmask: causal\n"
    "score: score + bias[h, max(0, min(31, q_pos - kv_idx))]\n"
    "tensors: {bias: {dtype: float32, dims: [heads, 32], grad: true}}"};

class Sm80Sums : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    KernelBank& bank = KernelBank::instance();
    if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
    const DeviceFacts& facts = bank.device().facts();
    forward_ = cheapest_of_families(spec_, kShapes[0], facts).front();
    std::vector<Request> requests = {{spec_, forward_}};
    for (const char* tile : kTiles) {
      const auto plan =
          parse_plan(fmt::format("sm80 backward {} {}", to_string(facts.target), tile));
      ASSERT_TRUE(plan.ok()) << render(plan.error());
      if (!check_plan(spec_, *plan, facts).ok()) continue;
      plans_.push_back(*plan);
      requests.push_back({spec_, *plan});
    }
    ASSERT_FALSE(plans_.empty());
    bank.prepare(requests);
  }
  const AttentionSpec spec_ = spec_of(fmt::format("name: t\n{}\n", GetParam()));
  KernelPlan forward_;
  std::vector<KernelPlan> plans_;
};

TEST_P(Sm80Sums, AreTheDerivative) {
  constexpr int kLaunches = 2;  // sums are as the first one left them
  for (const ProblemShape& shape : kShapes)
    EXPECT_TRUE(judge_backward(spec_, shape, 11, forward_, plans_, kLaunches));
}

TEST_P(Sm80Sums, FaultsAreSeen) {
  const std::vector<planted::Fault> faults = {
      {"sums of the block of columns before",
       {{"const int chunk = group + i * kGroups;",
         "const int chunk = (group + i * kGroups) ^ 1;"}}},
      {"the last keys of a tile are left out of dS K",
       {{"for (int j = 0; j < kRows / 16; ++j) {\n      unsigned a[kBlocks][4];",
         "for (int j = 0; j < kRows / 16 - 1; ++j) {\n      unsigned a[kBlocks][4];"}}},
      {"a head's sums begin as they were found",
       {{"      clear_query_sums<HasSums::kColumns>(p, sequence, b, head, first_query);",
         "      if (head > 0) clear_query_sums<HasSums::kColumns>(p, sequence, b, head, "
         "first_query);"}}}};
  EXPECT_TRUE(are_found(faults, spec_, kShapes[0], plans_.front()));
}

INSTANTIATE_TEST_SUITE_P(Specs, Sm80Sums, testing::ValuesIn(kSpecs),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

class Sm80SumsPacked : public Sm80Sums {};

TEST_P(Sm80SumsPacked, RandomBatches) {
  KernelBank& bank = KernelBank::instance();
  const auto forward = bank.get(spec_, forward_);
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  std::vector<std::shared_ptr<LoadedKernel>> owned;
  std::vector<const LoadedKernel*> backward;
  for (const KernelPlan& plan : plans_) {
    const auto kernel = bank.get(spec_, plan);
    ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
    owned.push_back(*kernel);
    backward.push_back(owned.back().get());
  }
  const packed::BackwardKernels kernels{bank.device(), spec_, **forward, backward,
                                        Arithmetic::kMatrixUnit};
  packed::check_random_gradients(kernels, 2, 500);
  packed::check_lengths_of_gradients(kernels);
}

INSTANTIATE_TEST_SUITE_P(Specs, Sm80SumsPacked,
                         testing::Values("dtype: bf16\nhead_dim: 128\nlayout: thd\nmask: causal",
                                         "dtype: fp16\nhead_dim: 64\nlayout: thd"),
                         [](const auto& info) { return fmt::format("Spec{}", info.index); });

}  // namespace
}  // namespace attune::gpu_test
