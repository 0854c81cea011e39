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
  return live_work(spec, shape, {64, 64}).share;
}

TEST(LiveShare, LookUpsAreUnknownUnlessDescribed) {
  EXPECT_NEAR(share(documents("")), 0.5, 0.05);
  EXPECT_TRUE(live_work(documents(""), kShape, {64, 64}).reads_tensors);
  const AttentionSpec described = documents(", sample: segments(mean=256)");
  EXPECT_FALSE(live_work(described, kShape, {64, 64}).reads_tensors);
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

// The first query tile sees everything, the others nothing.
TEST(LiveShare, QueryTilesAtTheEndsAreLookedAtAndStandForThemselves) {
  const AttentionSpec spec = spec_of("q_idx < 128 or block_sparse(table, 128)",
                                     "table: {dtype: bool, dims: [64, 64], sample: constant(0)}");
  const LiveWork work = live_work(spec, kShape, {128, 128});
  ASSERT_TRUE(work.is_described);
  EXPECT_NEAR(work.share, 1.0 / 64, 1e-9);
  EXPECT_NEAR(work.longest, 64, 1e-6);
}

// Documents of 64 tokens under a mask that nothing else decides.
AttentionSpec short_documents() {
  auto spec = spec_of("document(doc)", "doc: {dtype: int32, dims: [batch, kv_len]}");
  spec.dtype = DType::kF32;
  spec.layout = Layout::kBhsd;
  spec.head_dim_qk = spec.head_dim_v = 64;
  expr::TensorValues doc{.sizes = {1, 512}, .values = std::vector<double>(512)};
  for (std::size_t i = 0; i < doc.values.size(); ++i) doc.values[i] = static_cast<double>(i / 64);
  spec.samples = {{.kind = SampleKind::kGiven,
                   .given = std::make_shared<const expr::TensorValues>(std::move(doc))}};
  return spec;
}
constexpr ProblemShape kShort{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 512, .kv_len = 512};

TEST(LiveShare, PartialTilesAreToldFromFullOnes) {
  const AttentionSpec spec = short_documents();
  const LiveWork exact = live_work(spec, kShort, {64, 64});
  EXPECT_EQ(exact.share, 0.125);
  EXPECT_EQ(exact.partial, 0);
  const LiveWork wide = live_work(spec, kShort, {64, 128});  // each with two documents
  EXPECT_EQ(wide.share, 0.25);
  EXPECT_EQ(wide.partial, 1);
  EXPECT_EQ(live_work(documents(""), kShape, {64, 64}).partial, 0) << "nothing is known";
  // The diagonal's eight of 36.
  const LiveWork causal = live_work(documents(", sample: constant(3)"), kShort, {64, 64});
  EXPECT_DOUBLE_EQ(causal.partial, 8.0 / 36);
}

// An EPYC takes 251 us with tiles of 96 or 128 keys, of which a quarter live, and 935 with 512.
TEST(LiveShare, OnTheCpuTheGuessKnowsTheTensorsThatAreGiven) {
  const AttentionSpec spec = short_documents();
  const DeviceFacts device = device_facts(Target::kCpu);
  const auto us = [&](const std::string& tile) {
    return cost_us(spec, *parse_plan("cpu forward cpu " + tile + " v32 t1"), kShort, device);
  };
  EXPECT_NEAR(us("q32 k512 u4 c2") / us("q32 k128 u4 c2"), 935.0 / 251, 0.5);
  const auto guess = default_plan(spec, kShort, device);
  ASSERT_TRUE(guess.ok()) << render(guess.error());
  EXPECT_LE(std::get<CpuPlan>(guess->tile).tile_kv, 128);
  // Everything lives and nothing is full: 924 us, and 794 where all tiles are full.
  AttentionSpec mixed = spec, same = spec;
  for (AttentionSpec* one : {&mixed, &same}) {
    expr::TensorValues doc = *spec.samples[0].given;
    for (std::size_t i = 0; i < doc.values.size(); ++i)
      doc.values[i] = one == &mixed && i % 16 == 0 ? 1 : 0;
    one->samples[0].given = std::make_shared<const expr::TensorValues>(std::move(doc));
  }
  const KernelPlan plan = *parse_plan("cpu forward cpu q32 k128 u4 c2 v32 t1");
  EXPECT_NEAR(cost_us(mixed, plan, kShort, device) / cost_us(same, plan, kShort, device),
              924.0 / 794, 0.1);
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

// The longest item decides when a launch is done, wherever it is.
TEST(LiveShare, BatchEntriesAndHeadsAreLookedAtOneByOne) {
  const ProblemShape shape{.batch = 4, .heads = 8, .kv_heads = 4, .q_len = 1, .kv_len = 8192};
  AttentionSpec spec = spec_of("padding(lengths)", "lengths: {dtype: int32, dims: [batch]}");
  const auto give = [&](std::vector<double> values) {
    const auto size = static_cast<std::int64_t>(values.size());
    spec.samples = {{.kind = SampleKind::kGiven,
                     .given = std::make_shared<const expr::TensorValues>(
                         expr::TensorValues{.sizes = {size}, .values = std::move(values)})}};
  };
  give({1024, 1024, 1024, 5120});
  const LiveWork uneven = live_work(spec, shape, {16, 64});
  EXPECT_EQ(uneven.share, 0.25);
  EXPECT_EQ(uneven.longest, 2.5);
  EXPECT_EQ(uneven.shortest, 0.5);
  EXPECT_EQ(uneven.keys, 0.25);
  give({2048, 2048, 2048, 2048});
  EXPECT_EQ(live_work(spec, shape, {16, 64}).longest, 1);

  spec = spec_of("kv_idx < reach[h]", "reach: {dtype: int32, dims: [heads]}");
  give({0, 0, 0, 0, 0, 0, 0, 8192});
  EXPECT_EQ(live_work(spec, shape, {16, 64}).share, 0.125);
  EXPECT_EQ(live_work(spec, shape, {16, 64}).longest, 8);
}

// Four heads, one of which is as long as the other three: two CTAs that take the next item end
// together, whatever the order; of four one has it all.
TEST(LiveShare, WhoTakesTheNextItemEvensThemOut) {
  const ProblemShape shape{.batch = 1, .heads = 4, .kv_heads = 4, .q_len = 64, .kv_len = 8192};
  AttentionSpec spec = spec_of("kv_idx < reach[h]", "reach: {dtype: int32, dims: [heads]}");
  spec.samples = {{.kind = SampleKind::kGiven,
                   .given = std::make_shared<const expr::TensorValues>(
                       expr::TensorValues{.sizes = {4}, .values = {1024, 3072, 1024, 1024}})}};
  const auto busiest = [&](std::int64_t ctas, bool takes_next, double item_share = 0) {
    return live_work(spec, shape, {64, 64},
                     {.ctas = ctas, .takes_next = takes_next, .item_share = item_share})
        .busiest;
  };
  EXPECT_DOUBLE_EQ(busiest(2, true), 1);
  EXPECT_DOUBLE_EQ(busiest(2, false), 4.0 / 3);
  EXPECT_DOUBLE_EQ(busiest(4, true), 2);
  EXPECT_LT(busiest(4, true, 1), 1.3);  // what items cost beside their tiles is even
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
