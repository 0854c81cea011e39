// The GPU's oracle of gradients is the CPU's, lets right kernels pass on shapes that the CPU's only
// samples, and finds what is planted in them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "runtime/support/parallel.hpp"
#include "tests/gpu/gradient_faults.hpp"
#include "tests/gpu/judged_gradients.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/gradient_oracle_checks.hpp"
#include "tests/verification/gradient_specs.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune::gpu_test {
namespace {

class GradientOracleTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!bank().missing().empty()) GTEST_SKIP() << bank().missing();
  }
  static KernelBank& bank() { return KernelBank::instance(); }

  // The forward pass' kernel; null after a failure.
  static std::shared_ptr<LoadedKernel> forward_of(const AttentionSpec& spec,
                                                  const ProblemShape& shape) {
    const auto plan = default_plan(spec, shape, bank().device().facts());
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    if (!plan.ok()) return nullptr;
    auto kernel = bank().get(spec, *plan);
    EXPECT_TRUE(kernel.ok()) << render(kernel.error());
    return kernel.ok() ? *kernel : nullptr;
  }
};

TEST_P(GradientOracleTest, IsTheCpusOracle) {
  const bool odd = std::string_view(GetParam()).size() % 2 != 0;
  for (const char* dtype : {odd ? "fp16" : "bf16", "fp32"}) {
    const AttentionSpec spec = spec_of(fmt::format("name: t\ndtype: {}\n{}", dtype, GetParam()));
    SCOPED_TRACE(dtype);
    const auto oracle = GradientOracle::make(bank().device(), bank().compiler(), spec);
    ASSERT_TRUE(oracle.ok()) << render(oracle.error());
    std::uint64_t seed = 1;
    for (const ProblemShape& shape :
         {ProblemShape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 85, .kv_len = 130},
          ProblemShape{.batch = 1, .heads = 3, .kv_heads = 3, .q_len = 70, .kv_len = 33},
          ProblemShape{.batch = 1, .heads = 4, .kv_heads = 1, .q_len = 1, .kv_len = 19}}) {
      SCOPED_TRACE(to_string(shape));
      const auto forward = forward_of(spec, shape);
      ASSERT_NE(forward, nullptr);
      verification::check_gradient_oracle(bank().device(), **oracle, spec, *forward, shape, seed++);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, GradientOracleTest,
                         testing::ValuesIn(verification::kGradientSpecs));

class GradientOracleAtLength : public GradientOracleTest {
 protected:
  static void expect_faults_found(const AttentionSpec& spec, const KernelPlan& plan,
                                  JudgedGradients& with) {
    const std::vector<planted::Fault> faults = planted::gradient_faults(plan);
    std::vector<Result<BuiltKernel>> built(faults.size(), Error{});
    parallel_for(static_cast<std::int64_t>(faults.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      planted::EditingCompiler editing(bank().compiler(), faults[at]);
      built[at] = build(spec, plan, editing, nullptr);
    });
    for (std::size_t i = 0; i < faults.size(); ++i) {
      SCOPED_TRACE(to_string(plan) + " with " + faults[i].name);
      ASSERT_TRUE(built[i].ok()) << render(built[i].error());
      const auto kernel = bank().device().load(spec, plan, built[i]->code.image);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto verdict = with.of(**kernel);
      ASSERT_TRUE(verdict.ok()) << render(verdict.error());
      EXPECT_NE(verdict->wrong, "");
    }
  }
};

// With the rows that the tuner takes.
TEST_P(GradientOracleAtLength, RightKernelsPassAndFaultsAreFound) {
  const std::string lines = GetParam();
  const AttentionSpec spec = spec_of("name: t\ndtype: bf16\n" + lines);
  const bool full = lines.find("mask") == std::string::npos;
  const std::int64_t length = full ? 16384 : 4096;
  const ProblemShape shape = {
      .batch = 1, .heads = 4, .kv_heads = 2, .q_len = length, .kv_len = length};
  const auto forward = forward_of(spec, shape);
  ASSERT_NE(forward, nullptr);
  const auto oracle = GradientOracle::make(bank().device(), bank().compiler(), spec);
  ASSERT_TRUE(oracle.ok()) << render(oracle.error());
  const auto with = JudgedGradients::make(spec, shape, *forward, **oracle, 7);
  ASSERT_TRUE(with.ok()) << render(with.error());
  const DeviceFacts& facts = bank().device().facts();
  const auto families = families_for(spec, facts.target, Pass::kBackward);
  ASSERT_TRUE(families.ok());
  std::vector<Request> requests;
  for (const Family family : *families) {
    for (const KernelPlan& plan : legal_plans(spec, family, facts, Pass::kBackward))
      requests.push_back({spec, plan});
  }
  bank().prepare(requests);
  for (const Family family : *families) {
    for (const KernelPlan& plan : legal_plans(spec, family, facts, Pass::kBackward)) {
      SCOPED_TRACE(to_string(plan));
      const auto kernel = bank().get(spec, plan);
      ASSERT_TRUE(kernel.ok()) << render(kernel.error());
      const auto verdict = (*with)->of(**kernel);
      ASSERT_TRUE(verdict.ok()) << render(verdict.error());
      EXPECT_EQ(verdict->wrong, "");
    }
    // The walk of tiles of 128 queries makes dS otherwise.
    const std::vector<KernelPlan> plans = legal_plans(spec, family, facts, Pass::kBackward);
    const auto is_long = [](const KernelPlan& plan) { return tile_shape(plan).q == 128; };
    const auto long_tiles = std::ranges::find_if(plans, is_long);
    expect_faults_found(spec, plans.front(), **with);
    if (long_tiles != plans.end() && !is_long(plans.front()))
      expect_faults_found(spec, *long_tiles, **with);
  }
}

// The whole shape is looked at before the ragged one.
TEST_P(GradientOracleAtLength, IsWhatTheTunerVerifiesWith) {
  const AttentionSpec spec = spec_of(std::string("name: t\ndtype: bf16\n") + GetParam());
  const ProblemShape shape = {.batch = 1, .heads = 4, .kv_heads = 2, .q_len = 4096, .kv_len = 4096};
  const DeviceFacts& facts = bank().device().facts();
  const KernelPlan plan = legal_plans(spec, Family::kSm80, facts, Pass::kBackward).front();
  planted::EditingCompiler editing(bank().compiler(), planted::sm80_gradient_faults().front());
  Compiler* const compilers[] = {&bank().compiler(), &editing};
  LocalExecutor executor(spec, shape, bank().device(), compilers, nullptr, 7, Pass::kBackward);
  for (const int compiler : {0, 1}) {
    const Candidate candidate(plan, compiler);
    const auto built = executor.compile(candidate);
    ASSERT_TRUE(built.ok()) << render(built.error());
    const Status status = executor.verify(candidate);
    if (compiler == 0) {
      EXPECT_TRUE(status.ok()) << render(status.error());
      continue;
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(rejection_reason(status.error()), "miscompute") << render(status.error());
    EXPECT_THAT(status.error().detail, testing::HasSubstr(to_string(shape)));
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, GradientOracleAtLength,
                         testing::Values("head_dim: 128\nmask: causal\n", "head_dim: 64\n",
                                         "head_dim: 192\nmask: causal\n",
                                         "head_dim: 128\nmask: causal\naccuracy: relaxed\n",
                                         "head_dim: 64\naccuracy: relaxed\n"));

}  // namespace
}  // namespace attune::gpu_test
