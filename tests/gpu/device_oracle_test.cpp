// The GPU's oracle is the CPU's, and judges all of a shape that the CPU only samples.
#include "runtime/reference/device_oracle.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/gpu/judge.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

// DoubleNear that takes -inf for -inf.
MATCHER(EqualOrNear, "") {
  const auto [a, b] = arg;
  return a == b || std::abs(a - b) < 5e-6;
}

class DeviceOracleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
  }
  static KernelBank& bank() { return KernelBank::instance(); }
};

TEST_F(DeviceOracleTest, IsTheCpusOracle) {
  const std::string doc = "tensors: {doc: {dtype: int32, dims: [batch, kv_len]}}\n";
  const std::string sinks = "tensors: {sinks: {dtype: float32, dims: [heads]}}\n";
  const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 170};
  for (const std::string& rest :
       {std::string("mask: causal\n"), doc + "mask: causal and document(doc)\ndropout: 0.25\n",
        sinks + "mask: sliding_window(20)\nsink: sinks[h]\n"}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      const AttentionSpec spec =
          spec_of(fmt::format("name: t\ndtype: {}\nhead_dim: {{qk: 72, v: 40}}\n{}", dtype, rest));
      SCOPED_TRACE(rest + dtype);
      const HostProblem problem = random_problem(spec, shape, 3);
      auto on_device = DeviceProblem::upload(bank().device(), spec, problem);
      ASSERT_TRUE(on_device.ok()) << render(on_device.error());
      auto oracle = DeviceOracle::make(bank().device(), bank().compiler(), spec);
      ASSERT_TRUE(oracle.ok()) << render(oracle.error());
      const auto exact = (*oracle)->exact((*on_device)->params());
      ASSERT_TRUE(exact.ok()) << render(exact.error());
      const HostOutput expected = oracle_forward(spec, problem);
      // What differs: the softmax scale, which kernels hold in fp32, and O's rounding to fp32.
      EXPECT_THAT(exact->o, testing::Pointwise(testing::DoubleNear(2e-6), expected.o));
      EXPECT_THAT(exact->lse, testing::Pointwise(EqualOrNear(), expected.lse));
      const auto plain = (*oracle)->plain((*on_device)->params());
      ASSERT_TRUE(plain.ok()) << render(plain.error());
      EXPECT_EQ(compare(spec.dtype, *plain, expected, plain_forward(spec, problem)), "");
      const std::vector<Row> rows = sample_rows(shape, 37, 5);
      const auto some = (*oracle)->exact((*on_device)->params(), rows);
      ASSERT_TRUE(some.ok()) << render(some.error());
      const HostOutput expected_rows = oracle_forward(spec, problem, rows);
      EXPECT_THAT(some->o, testing::Pointwise(testing::DoubleNear(2e-6), expected_rows.o));
      EXPECT_THAT(some->lse, testing::Pointwise(EqualOrNear(), expected_rows.lse));
    }
  }
}

TEST_F(DeviceOracleTest, EveryRowOfALargeShapeIsRight) {
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n");
  const ProblemShape shape = {.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 8192, .kv_len = 8192};
  auto problem = DeviceProblem::for_timing(bank().device(), spec, shape, 7);
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  auto oracle = DeviceOracle::make(bank().device(), bank().compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const auto exact = (*oracle)->exact((*problem)->params());
  ASSERT_TRUE(exact.ok()) << render(exact.error());
  const auto plain = (*oracle)->plain((*problem)->params());
  ASSERT_TRUE(plain.ok()) << render(plain.error());
  for (const KernelPlan& plan : plans_of_families(spec, shape, bank().device().facts())) {
    auto kernel = bank().get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    ASSERT_TRUE((*problem)->poison().ok());
    ASSERT_TRUE((*problem)->prepare(**kernel).ok());
    ASSERT_TRUE((*problem)->launch(**kernel, nullptr).ok());
    ASSERT_TRUE(bank().device().synchronize().ok());
    const auto out = (*problem)->download(all_rows(shape));
    ASSERT_TRUE(out.ok()) << render(out.error());
    EXPECT_EQ(compare(spec.dtype, *out, *exact, *plain), "") << to_string(plan);
  }
}

}  // namespace
}  // namespace attune::gpu_test
