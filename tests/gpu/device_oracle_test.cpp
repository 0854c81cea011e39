// The GPU's oracle is the CPU's, and judges all of a shape that the CPU only samples.
#include "runtime/reference/device_oracle.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "runtime/reference/element_bits.hpp"
#include "tests/gpu/judge.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

// DoubleNear that takes -inf for -inf.
MATCHER(EqualOrNear, "") {
  const auto [a, b] = arg;
  return a == b || std::abs(a - b) < 5e-6;
}

MATCHER(AlikeLimit, "") {
  const auto [a, b] = arg;
  return a >= 0.9 * b && a <= 1.2 * b + 1e-5;
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
    for (const char* dtype : {"bf16", "fp16", "fp32"}) {
      const AttentionSpec spec =
          spec_of(fmt::format("name: t\ndtype: {}\nhead_dim: {{qk: 72, v: 40}}\n{}", dtype, rest));
      SCOPED_TRACE(rest + dtype);
      const HostProblem problem = random_problem(spec, shape, 3);
      auto on_device = DeviceProblem::upload(bank().device(), spec, problem);
      ASSERT_TRUE(on_device.ok()) << render(on_device.error());
      auto oracle = DeviceOracle::make(bank().device(), bank().compiler(), spec);
      ASSERT_TRUE(oracle.ok()) << render(oracle.error());
      for (const auto& rows : {all_rows(shape), sample_rows(shape, 37, 5)}) {
        const auto answer = (*oracle)->answer((*on_device)->params(), rows);
        ASSERT_TRUE(answer.ok()) << render(answer.error());
        const auto exact = (*oracle)->download(*answer);
        ASSERT_TRUE(exact.ok()) << render(exact.error());
        const ForwardOracle expected = oracle_forward(spec, problem, rows);
        // What differs: the softmax scale, which kernels hold in fp32, and O's rounding to fp32.
        EXPECT_THAT(exact->o.values,
                    testing::Pointwise(testing::DoubleNear(2e-6), expected.o.values));
        EXPECT_THAT(exact->lse.values, testing::Pointwise(EqualOrNear(), expected.lse.values));
        // Limits are worked out in fp32, and a score function's error from differences.
        EXPECT_THAT(exact->o.limits, testing::Pointwise(AlikeLimit(), expected.o.limits));
        EXPECT_THAT(exact->lse.limits, testing::Pointwise(AlikeLimit(), expected.lse.limits));
      }
    }
  }
}

TEST_F(DeviceOracleTest, JudgesAsTheCpuDoes) {
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 64\nmask: causal\n");
  const ProblemShape shape = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 130, .kv_len = 170};
  Device& device = bank().device();
  const HostProblem problem = random_problem(spec, shape, 3);
  auto on_device = DeviceProblem::upload(device, spec, problem);
  ASSERT_TRUE(on_device.ok()) << render(on_device.error());
  auto oracle = DeviceOracle::make(device, bank().compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const att::LaunchParams& params = (*on_device)->params();
  const auto answer = (*oracle)->answer(params, all_rows(shape));
  ASSERT_TRUE(answer.ok()) << render(answer.error());
  const ForwardOracle expected = oracle_forward(spec, problem);
  // The definition, rounded, is right.
  std::vector<double> o;  // in the layout's order, b s h d
  for (int b = 0; b < 2; ++b) {
    for (int q = 0; q < 130; ++q) {
      for (int h = 0; h < 4; ++h) {
        const auto row = static_cast<std::size_t>((b * 4 + h) * 130 + q);
        for (std::size_t d = 0; d < 64; ++d) {
          o.push_back(round_to(spec.dtype, expected.o.values[row * 64 + d]));
        }
      }
    }
  }
  std::vector<float> lse(expected.lse.values.begin(), expected.lse.values.end());
  const auto verdict = [&] {
    const auto bits = encode(spec.dtype, o);
    EXPECT_TRUE(device.copy_to_device(params.o, bits.data(), bits.size()).ok());
    EXPECT_TRUE(device.copy_to_device(params.lse, lse.data(), lse.size() * sizeof(float)).ok());
    const auto judged = (*oracle)->judge(*answer, params);
    EXPECT_TRUE(judged.ok()) << render(judged.error());
    return judged.ok() ? *judged : Verdict{};
  };
  EXPECT_EQ(verdict().wrong, "");
  const std::size_t at = ((1 * 130 + 77) * 4 + 2) * 64 + 5;  // b 1, q_idx 77, h 2
  const double right = o[at];
  o[at] = right + 0.25;
  EXPECT_THAT(verdict().wrong, testing::HasSubstr("b 1, h 2, q_idx 77: o[row 0, column 5]"));
  o[at] = std::nan("");
  EXPECT_TRUE(std::isinf(verdict().worst));
  o[at] = right;
  lse[(1 * 4 + 2) * 130 + 77] += 1e-3f;
  EXPECT_THAT(verdict().wrong, testing::HasSubstr("b 1, h 2, q_idx 77: lse[row 0"));
}

TEST_F(DeviceOracleTest, EveryRowOfALargeShapeIsRight) {
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\nhead_dim: 128\nmask: causal\n");
  const ProblemShape shape = {.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 8192, .kv_len = 8192};
  auto problem = DeviceProblem::for_timing(bank().device(), spec, shape, 7);
  ASSERT_TRUE(problem.ok()) << render(problem.error());
  auto oracle = DeviceOracle::make(bank().device(), bank().compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const auto answer = (*oracle)->answer((*problem)->params(), all_rows(shape));
  ASSERT_TRUE(answer.ok()) << render(answer.error());
  for (const KernelPlan& plan : plans_of_families(spec, shape, bank().device().facts())) {
    auto kernel = bank().get(spec, plan);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    ASSERT_TRUE((*problem)->poison().ok());
    ASSERT_TRUE((*problem)->prepare(**kernel).ok());
    ASSERT_TRUE((*problem)->launch(**kernel, nullptr).ok());
    ASSERT_TRUE(bank().device().synchronize().ok());
    const auto verdict = (*oracle)->judge(*answer, (*problem)->params());
    ASSERT_TRUE(verdict.ok()) << render(verdict.error());
    EXPECT_EQ(verdict->wrong, "") << to_string(plan);
  }
}

}  // namespace
}  // namespace attune::gpu_test
