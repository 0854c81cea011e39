#include "tuner/measure/memory_need.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/reference/oracle.hpp"

namespace attune {
namespace {

using testing::HasSubstr;

AttentionSpec spec_of(const std::string& more = "") {
  return parse_spec("attune: 1\nname: x\ndtype: bf16\nhead_dim: {qk: 64, v: 32}\n" + more, "x")
      .value();
}
DeviceFacts device(Target target, std::int64_t memory_bytes) {
  return {.name = "made up", .target = target, .memory_bytes = memory_bytes};
}
constexpr ProblemShape kShape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 300};
constexpr ProblemShape kLargest{
    .batch = 65536, .heads = 4096, .kv_heads = 4096, .q_len = 1 << 28, .kv_len = 1 << 28};

TEST(MemoryNeed, OfValuesIsWhatRandomProblemHolds) {
  const AttentionSpec spec =
      spec_of("tensors: {t: {dtype: float32, dims: [heads, 10]}}\nscore: score + t[h, 0]\n");
  const HostProblem problem = random_problem(spec, kShape, 1);
  const std::size_t values =
      problem.q.size() + problem.k.size() + problem.v.size() + problem.tensors[0].values.size();
  EXPECT_EQ(need_of_values(spec, kShape).host_bytes, 8.0 * double(values));
}

TEST(MemoryNeed, OfARunCountsEveryTensorOfTheDevice) {
  const double rows = 2 * 4 * 100, keys = 2 * 2 * 300;
  const MemoryNeed need = need_of_run(spec_of(), kShape, rows);
  EXPECT_EQ(need.device_bytes, 2 * (rows * 64 + keys * 64 + keys * 32 + rows * 32) + 4 * rows);
  EXPECT_GT(need.host_bytes, 8 * (rows * 64 + keys * 96));
  EXPECT_LT(need_of_run(spec_of(), kShape, 1).host_bytes, need.host_bytes);
}

TEST(MemoryNeed, OfTimingHoldsNoDoublesOfTheWholeProblem) {
  const ProblemShape large{.heads = 8, .kv_heads = 8, .q_len = 1 << 20, .kv_len = 1 << 20};
  const DeviceFacts gpu = device(Target::kSm90a, 1);
  EXPECT_LT(need_of_timing(spec_of(), large, gpu, Pass::kForward).host_bytes,
            need_of_values(spec_of(), large).host_bytes / 10);
  EXPECT_GT(need_of_timing(spec_of(), large, device(Target::kCpu, 1), Pass::kForward).device_bytes,
            need_of_timing(spec_of(), large, gpu, Pass::kForward).device_bytes)
      << "the CPU verifies a smaller problem beside the timed one";
  EXPECT_GT(need_of_timing(spec_of(), large, gpu, Pass::kBackward).device_bytes,
            need_of_timing(spec_of(), large, gpu, Pass::kForward).device_bytes)
      << "gradients take as much again";
}

TEST(CheckFits, AsksMainMemoryForBothOnTheCpu) {
  const MemoryNeed need{.host_bytes = 600e6, .device_bytes = 500e6};
  EXPECT_TRUE(check_fits(need, kShape, device(Target::kCpu, 0), 1'100'000'000).ok());
  const Status short_of = check_fits(need, kShape, device(Target::kCpu, 0), 1'099'999'999);
  ASSERT_FALSE(short_of.ok());
  EXPECT_EQ(short_of.error().id, "memory-short");
  EXPECT_EQ(short_of.error().kind, ErrorKind::kBadInput);
  EXPECT_THAT(short_of.error().message, HasSubstr("q_len=100"));
  EXPECT_THAT(short_of.error().message, HasSubstr("takes 1.1 GB of main memory"));
}

TEST(CheckFits, AsksAGpuForItsOwn) {
  const MemoryNeed need{.host_bytes = 600e6, .device_bytes = 500e6};
  EXPECT_TRUE(check_fits(need, kShape, device(Target::kSm90a, 500'000'000), 600'000'000).ok());
  EXPECT_THAT(
      check_fits(need, kShape, device(Target::kSm90a, 400'000'000), 600'000'000).error().message,
      HasSubstr("takes 500 MB of the GPU's memory, and 400 MB are there"));
  EXPECT_THAT(check_fits(need, kShape, device(Target::kSm90a, 500'000'000), 1).error().message,
              HasSubstr("600 MB of main memory"));
}

TEST(CheckFits, TheLargestShapeOverflowsNothing) {
  const DeviceFacts cpu = device(Target::kCpu, 0);
  constexpr std::int64_t kAll = INT64_MAX;
  EXPECT_FALSE(check_fits(need_of_values(spec_of(), kLargest), kLargest, cpu, kAll).ok());
  EXPECT_FALSE(check_fits(need_of_run(spec_of(), kLargest, 1), kLargest, cpu, kAll).ok());
  EXPECT_FALSE(
      check_fits(need_of_timing(spec_of(), kLargest, cpu, Pass::kForward), kLargest, cpu, kAll)
          .ok());
  EXPECT_FALSE(check_fits(need_of_backward(spec_of(), kLargest), kLargest, cpu, kAll).ok());
}

}  // namespace
}  // namespace attune
