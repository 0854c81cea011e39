// Right kernels are never called wrong: random shapes and numbers, every family, by the oracle of
// the GPU. ATTUNE_ALARM_RUNS says how many runs there are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "runtime/reference/device_oracle.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/problems.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

constexpr int kDefaultRuns = 200;
constexpr ProblemShape kTypical{.q_len = 64, .kv_len = 256};

class Alarm : public testing::TestWithParam<const char*> {};

TEST_P(Alarm, NoneByRightKernels) {
  KernelBank& bank = KernelBank::instance();
  if (!bank.missing().empty()) GTEST_SKIP() << bank.missing();
  Device& device = bank.device();
  const char* const wanted = std::getenv("ATTUNE_ALARM_RUNS");
  const auto specs = std::size(planted::kRightSpecs);
  const int runs =  // of each spec
      1 + (wanted != nullptr ? std::atoi(wanted) : kDefaultRuns) / static_cast<int>(2 * specs);
  std::random_device fresh;
  double worst = 0;
  std::size_t served = 0;
  for (const char* lines : planted::kRightSpecs) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}", GetParam(), lines));
    const std::vector<KernelPlan> plans = plans_of_families(spec, kTypical, device.facts());
    if (plans.empty()) continue;
    ++served;
    const auto oracle = DeviceOracle::make(device, bank.compiler(), spec);
    ASSERT_TRUE(oracle.ok()) << render(oracle.error());
    for (int run = 0; run < runs; ++run) {
      const auto seed = static_cast<std::uint64_t>(fresh()) << 32 | fresh();
      std::mt19937_64 random(seed);
      const ProblemShape shape = planted::random_shape(random);
      const auto problem = DeviceProblem::upload(device, spec, random_problem(spec, shape, seed));
      ASSERT_TRUE(problem.ok()) << render(problem.error());
      const att::LaunchParams& params = (*problem)->params();
      const auto answer = (*oracle)->answer(params, all_rows(shape));
      ASSERT_TRUE(answer.ok()) << render(answer.error());
      for (const KernelPlan& plan : plans) {
        SCOPED_TRACE(
            fmt::format("{}{} {} seed {}", lines, to_string(plan), to_string(shape), seed));
        const auto kernel = bank.get(spec, plan);
        ASSERT_TRUE(kernel.ok()) << render(kernel.error());
        ASSERT_TRUE((*problem)->poison().ok());
        ASSERT_TRUE((*problem)->launch(**kernel, nullptr).ok());
        ASSERT_TRUE(device.synchronize().ok());
        const auto verdict = (*oracle)->judge(*answer, params);
        ASSERT_TRUE(verdict.ok()) << render(verdict.error());
        EXPECT_EQ(verdict->wrong, "");
        worst = std::max(worst, verdict->worst);
      }
    }
  }
  EXPECT_GE(served, specs - 1) << "GPU families lack head dim 8 alone";
  fmt::print("{}: {} runs of {} specs, the worst at {:.2f} of what is allowed\n", GetParam(), runs,
             served, worst);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Alarm, testing::Values("bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace attune::gpu_test
