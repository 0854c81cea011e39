// Right kernels are never called wrong: many runs over dtypes, shapes and specs, each on fresh
// numbers. ATTUNE_ALARM_RUNS says how many there are; the default suits every change.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/problems.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune {
namespace {

constexpr int kDefaultRuns = 150;
constexpr std::int64_t kPairs = 1 << 17;  // of which rows are judged, a run

class Alarm : public testing_support::CpuTest, public testing::WithParamInterface<const char*> {};

TEST_P(Alarm, NoneByRightKernels) {
  const char* const wanted = std::getenv("ATTUNE_ALARM_RUNS");
  const int runs = (wanted != nullptr ? std::atoi(wanted) : kDefaultRuns) / 3;  // dtypes
  std::random_device fresh;
  std::map<const char*, std::pair<AttentionSpec, std::unique_ptr<LoadedKernel>>> kernels;
  for (const char* variant : planted::kRightSpecs) {
    auto spec =
        parse_spec(fmt::format("attune: 1\nname: t\ndtype: {}\n{}", GetParam(), variant), "t.yaml");
    ASSERT_TRUE(spec.ok()) << render(spec.error());
    const auto plan = default_plan(*spec, {.q_len = 64, .kv_len = 256}, device_->facts());
    ASSERT_TRUE(plan.ok()) << render(plan.error());
    const auto built = build(*spec, *plan, *compiler_, nullptr);
    ASSERT_TRUE(built.ok()) << render(built.error());
    auto kernel = device_->load(*spec, *plan, built->code.image);
    ASSERT_TRUE(kernel.ok()) << render(kernel.error());
    kernels[variant] = {*std::move(spec), *std::move(kernel)};
  }
  double worst = 0;
  for (int run = 0; run < runs; ++run) {
    const auto seed = static_cast<std::uint64_t>(fresh()) << 32 | fresh();
    std::mt19937_64 random(seed);
    const char* const variant = planted::kRightSpecs[random() % std::size(planted::kRightSpecs)];
    const auto& [spec, kernel] = kernels.at(variant);
    const ProblemShape shape = planted::random_shape(random);
    SCOPED_TRACE(fmt::format("{}{} seed {}", variant, to_string(shape), seed));
    const HostProblem problem = random_problem(spec, shape, seed);
    const auto on_device = DeviceProblem::upload(*device_, spec, problem);
    ASSERT_TRUE(on_device.ok()) << render(on_device.error());
    ASSERT_TRUE((*on_device)->launch(*kernel, nullptr).ok());
    const auto rows = stratified_rows(shape, kPairs, seed);
    const auto out = (*on_device)->download(rows);
    ASSERT_TRUE(out.ok()) << render(out.error());
    const Verdict verdict = compare(*out, oracle_forward(spec, problem, rows, Arithmetic::kVector));
    EXPECT_EQ(verdict.wrong, "");
    worst = std::max(worst, verdict.worst);
  }
  fmt::print("{}: {} runs, the worst at {:.2f} of what is allowed\n", GetParam(), runs, worst);
  EXPECT_GT(worst, 0.2) << "the limits are too wide to say anything";
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Alarm, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace attune
