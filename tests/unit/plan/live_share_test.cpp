// What the cost model knows of a mask whose tensors a spec describes.
#include "generator/plan/live_share.hpp"

#include <gtest/gtest.h>

#include "generator/expr/evaluator.hpp"
#include "generator/plan/plan_space.hpp"

namespace attune {
namespace {

AttentionSpec spec_of(const std::string& mask, const std::string& tensor) {
  auto spec = parse_spec("attune: 1\nname: t\ndtype: bf16\nhead_dim: 128\nmask: " + mask +
                             "\ntensors: {" + tensor + "}\n",
                         "");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return *std::move(spec);
}
AttentionSpec documents(const std::string& sample) {
  return spec_of("causal and document(doc)",
                 "doc: {dtype: int32, dims: [batch, kv_len]" + sample + "}");
}
constexpr ProblemShape kShape{
    .batch = 4, .heads = 16, .kv_heads = 16, .q_len = 8192, .kv_len = 8192};

double share(const AttentionSpec& spec, const ProblemShape& shape = kShape) {
  return live_work(spec, shape, 64, 64).share;
}

TEST(LiveShare, LookUpsAreUnknownUnlessDescribed) {
  EXPECT_NEAR(share(documents("")), 0.5, 0.05);
  EXPECT_TRUE(live_work(documents(""), kShape, 64, 64).reads_tensors);
  const AttentionSpec described = documents(", sample: segments(mean=256)");
  EXPECT_FALSE(live_work(described, kShape, 64, 64).reads_tensors);
  EXPECT_LT(share(described), 0.1);
  EXPECT_GT(share(documents(", sample: segments(mean=2048)")), share(described));
  EXPECT_NEAR(share(documents(", sample: constant(3)")), 0.5, 0.05);
}

TEST(LiveShare, AGivenTensorCounts) {
  AttentionSpec spec = documents("");
  const auto give = [&](double boundary) {
    expr::TensorValues doc{.sizes = {1, 8192}, .values = std::vector<double>(8192)};
    for (std::size_t i = 0; i < doc.values.size(); ++i)
      doc.values[i] = static_cast<double>(i) < boundary ? 0 : 1;
    spec.samples = {{.kind = SampleKind::kGiven,
                     .given = std::make_shared<const expr::TensorValues>(std::move(doc))}};
    return share(spec);
  };
  EXPECT_NEAR(give(8192), 0.5, 0.05);
  EXPECT_NEAR(give(4096), 0.25, 0.05);  // two triangles of half the length
}

TEST(LiveShare, EveryKindOfLookUpIsCounted) {
  const double trees = share(spec_of("kv_idx <= q_idx and q_idx < end[kv_idx]",
                                     "end: {dtype: int32, dims: [kv_len], sample: subtree_ends}"));
  EXPECT_LT(trees, 0.4);
  const double blocks = share(spec_of(
      "block_sparse(blocks, 128)", "blocks: {dtype: bool, dims: [64, 64], sample: chance(0.1)}"));
  EXPECT_NEAR(blocks, 0.1, 0.06);
}

// A kernel reads a few elements of a tile at most to tell whether it lives.
TEST(LiveShare, WhatAKernelCannotTellIsNotCounted) {
  const AttentionSpec dense =
      spec_of("m[q_idx, kv_idx]", "m: {dtype: bool, dims: [q_len, kv_len], sample: chance(0)}");
  EXPECT_EQ(share(dense, {.q_len = 512, .kv_len = 512}), 1);
  EXPECT_EQ(share(dense), 1);  // nor is it drawn: 2^26 elements
}

TEST(LiveShare, ASampleMakesAnotherSpaceOfPlans) {
  const DeviceFacts device = device_facts(Target::kSm90a);
  const auto plain = plan_space(documents(""), device);
  EXPECT_FALSE(plain->is_of(documents(", sample: segments(mean=64)"), device));
}

TEST(LiveShare, TheQuickChoiceIsTheCheapestOfDescribedSpecsToo) {
  for (const char* sample : {", sample: segments(mean=64)", ", sample: segments(mean=2048)"}) {
    const AttentionSpec spec = documents(sample);
    for (const Target target : {Target::kSm90a, Target::kSm80, Target::kCpu}) {
      const DeviceFacts device = device_facts(target);
      const auto quick = default_plan(spec, kShape, device);
      const auto all = plans_by_cost(spec, kShape, device);
      ASSERT_TRUE(quick.ok() && all.ok());
      EXPECT_EQ(to_string(*quick), to_string(all->front()));
    }
  }
}

}  // namespace
}  // namespace attune
