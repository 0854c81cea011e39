#include "runtime/reference/work.hpp"

#include <gtest/gtest.h>

namespace attune {
namespace {

AttentionSpec spec_of(const std::string& rest) {
  const std::string yaml = "attune: 1\nname: t\ndtype: bf16\nhead_dim: {qk: 64, v: 32}\n" + rest;
  return parse_spec(yaml, "t.yaml").value();
}

constexpr ProblemShape kShape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 96, .kv_len = 128};

TEST(Work, AnUnmaskedProblem) {
  const Work work = forward_work(spec_of(""), kShape, {});
  EXPECT_EQ(work.live_share, 1);
  EXPECT_EQ(work.flops, 2.0 * 2 * 4 * 96 * 128 * (64 + 32));
  const double elements = 2 * (4 * 96 * (64 + 32) + 2 * 128 * (64 + 32));
  EXPECT_EQ(work.bytes, elements * 2 + 2 * 4 * 96 * 4);
}

TEST(Work, OfTheBackwardPassIsFiveProductsToTwo) {
  const std::string slopes =
      "tensors: {slope: {dtype: float32, dims: [heads], grad: true}}\nscore: score + slope[h]\n";
  const Work forward = forward_work(spec_of(slopes), kShape, {}),
             backward = backward_work(spec_of(slopes), kShape, {});
  EXPECT_EQ(backward.flops, 2.5 * forward.flops);
  EXPECT_EQ(backward.live_share, forward.live_share);
  // dO and dQ, dK and dV, and the slopes' gradient.
  const double elements = 2 * (4 * 96 * (64 + 32) + 2 * 128 * (64 + 32));
  EXPECT_EQ(backward.bytes, forward.bytes + elements * 2 + 4 * 4);
  EXPECT_EQ(work_of(Pass::kBackward, spec_of(slopes), kShape, {}).flops, backward.flops);
  EXPECT_EQ(work_of(Pass::kForward, spec_of(slopes), kShape, {}).bytes, forward.bytes);
}

TEST(Work, OfPackedSequencesTheBackwardPassMovesEachTokenOnce) {
  AttentionSpec spec = spec_of("");
  spec.layout = Layout::kThd;
  const ProblemShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 30, .kv_len = 50};
  const ProblemValues values{.sequences = {.cu_q = {0, 10, 30}, .cu_kv = {0, 20, 50}}};
  const Work forward = forward_work(spec, shape, values),
             backward = backward_work(spec, shape, values);
  const double dims = spec.head_dim_qk + spec.head_dim_v;
  EXPECT_DOUBLE_EQ(backward.bytes - forward.bytes,
                   (4 * 30 + 2 * 50) * dims * element_bytes(spec.dtype));
}

TEST(Work, CountsLivePairsExactlyWhereItCan) {
  const Work work = forward_work(spec_of("mask: kv_idx <= q_idx\n"), kShape, {});
  EXPECT_DOUBLE_EQ(work.live_share, (96.0 * 97 / 2) / (96 * 128));
}

TEST(Work, HeadsAndBatchesCountWhereTheMaskKnowsThem) {
  const Work work = forward_work(spec_of("mask: h == 0 and b == 0\n"), kShape, {});
  EXPECT_DOUBLE_EQ(work.live_share, 1.0 / 8);
}

TEST(Work, SampledRowsAreSpreadEvenly) {
  const ProblemShape large = {.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 4096, .kv_len = 4096};
  const Work work = forward_work(spec_of("mask: kv_idx <= q_idx\n"), large, {}, 1 << 18);
  EXPECT_NEAR(work.live_share, 0.5, 1e-3);
}

TEST(Work, TheRooflineIsWhicheverBinds) {
  DeviceFacts device;
  device.matrix_tflops = 1;
  device.memory_gb_per_s = 1;
  EXPECT_DOUBLE_EQ(roofline_us({.live_share = 1, .flops = 2e6, .bytes = 1e3}, device), 2);
  EXPECT_DOUBLE_EQ(roofline_us({.live_share = 1, .flops = 2e6, .bytes = 5e3}, device), 5);
  AttentionSpec spec;
  const auto at_best = [&] {
    return roofline_us({.live_share = 1, .flops = 2e6, .bytes = 1e3}, facts_of_dtype(spec, device));
  };
  EXPECT_DOUBLE_EQ(at_best(), 2);
  spec.dtype = DType::kF32;
  EXPECT_DOUBLE_EQ(at_best(), 12);
  spec.precision = Precision::kTf32;
  EXPECT_DOUBLE_EQ(at_best(), 4);
  device.target = Target::kCpu;
  EXPECT_DOUBLE_EQ(at_best(), 2);
}

}  // namespace
}  // namespace attune
