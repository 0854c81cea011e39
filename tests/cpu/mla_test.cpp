// Keys whose first columns are the values, on the CPU family.
#include "tests/verification/mla.hpp"

#include <fmt/format.h>

#include "tests/cpu/cpu_test.hpp"
#include "tests/cpu/harness.hpp"
#include "tests/verification/packed_checks.hpp"
#include "tests/verification/paged_checks.hpp"

namespace attune {
namespace {

constexpr ProblemShape kTypical{.batch = 4, .heads = 16, .kv_heads = 1, .q_len = 4, .kv_len = 1000};

class CpuMla : public testing_support::CpuTest {
 protected:
  static AttentionSpec spec_of(const char* dtype, std::string_view lines) {
    const auto spec = parse_spec(
        fmt::format("attune: 1\nname: t\ndtype: {}\nv_in_k: true\n{}\n", dtype, lines), "t");
    EXPECT_TRUE(spec.ok()) << render(spec.error());
    return *spec;
  }
  // The cheapest plan at a shape.
  const LoadedKernel* kernel_at(const AttentionSpec& spec, const ProblemShape& shape) {
    const auto plan = default_plan(spec, shape, device_->facts());
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    return plan.ok() ? kernel_of(spec, *plan) : nullptr;
  }
};

TEST_F(CpuMla, IsRightByTheOracle) {
  int number = 0;
  for (const mla::Case& c : mla::kCases) {
    const char* const dtypes[] = {"bf16", "fp32", "fp16"};
    const AttentionSpec spec = spec_of(dtypes[number++ % 3], c.spec);
    SCOPED_TRACE(c.name);
    const HostProblem problem = random_problem(spec, c.shape, 7);
    EXPECT_TRUE(problem.v.empty());
    const LoadedKernel* kernel = kernel_at(spec, c.shape);
    ASSERT_NE(kernel, nullptr);
    for (const int padding : {0, 16}) {
      const auto output =
          testing_support::run_kernel(*device_, *kernel, spec, problem, {.padding = padding});
      ASSERT_TRUE(output.ok()) << render(output.error());
      EXPECT_EQ(
          compare(*output, oracle_forward(spec, problem, all_rows(c.shape), Arithmetic::kVector))
              .wrong,
          "");
    }
  }
}

TEST_F(CpuMla, PackedSequences) {
  for (const char* lines : mla::kSequenceSpecs) {
    const AttentionSpec spec = spec_of("bf16", fmt::format("layout: thd\n{}", lines));
    const LoadedKernel* kernel = kernel_at(spec, kTypical);
    ASSERT_NE(kernel, nullptr);
    packed::check_random(*device_, *kernel, spec, Arithmetic::kVector, 1, 50);
    packed::check_empty(*device_, *kernel, spec);
    packed::check_garbage(*device_, *kernel, spec);
  }
}

TEST_F(CpuMla, PagedSequences) {
  for (const char* lines : mla::kSequenceSpecs) {
    const AttentionSpec spec = spec_of("bf16", fmt::format("layout: paged\n{}", lines));
    const LoadedKernel* kernel = kernel_at(spec, kTypical);
    ASSERT_NE(kernel, nullptr);
    paged::check_cases(*device_, *kernel, spec,
                       paged::paged_cases(spec, Arithmetic::kVector, 1, 300));
    paged::check_empty(*device_, *kernel, spec);
  }
}

// The oracle of a spec with v_in_k is that of one without, where V is a copy.
TEST(MlaOracle, IsThatOfACopiedV) {
  const auto spec_of = [](const char* line) {
    return *parse_spec(fmt::format("attune: 1\nname: t\ndtype: fp32\nhead_dim: {{qk: 32, v: 16}}\n"
                                   "mask: causal\n{}",
                                   line),
                       "t");
  };
  const AttentionSpec shared = spec_of("v_in_k: true\n"), own = spec_of("");
  const ProblemShape shape{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 3, .kv_len = 20};
  HostProblem problem = random_problem(shared, shape, 3);
  const ForwardOracle of_shared =
      oracle_forward(shared, problem, all_rows(shape), Arithmetic::kVector);
  for (std::size_t row = 0; row < problem.k.size() / 32; ++row) {
    problem.v.insert(problem.v.end(), problem.k.begin() + static_cast<std::ptrdiff_t>(row * 32),
                     problem.k.begin() + static_cast<std::ptrdiff_t>(row * 32 + 16));
  }
  const ForwardOracle of_own = oracle_forward(own, problem, all_rows(shape), Arithmetic::kVector);
  EXPECT_EQ(of_shared.o.values, of_own.o.values);
  EXPECT_EQ(of_shared.lse.values, of_own.lse.values);
}

// A kernel that reads V elsewhere is found out.
TEST_F(CpuMla, PlantedFaultIsSeen) {
  const AttentionSpec spec = spec_of("bf16", "head_dim: {qk: 576, v: 512}\nmask: causal");
  // More keys than a tile has on any processor.
  const ProblemShape shape{.batch = 1, .heads = 16, .kv_heads = 1, .q_len = 1, .kv_len = 3000};
  const auto plan = default_plan(spec, shape, device_->facts());
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  planted::EditingCompiler faulty(
      *compiler_, {"V a column on",
                   {{"Cache::v_rows(p, item, k0, keys, keys, scratch.v)",
                     "Cache::v_rows(p, item, k0 > 100 ? k0 - 1 : k0, keys, keys, scratch.v)"}}});
  const auto kernel = load(spec, *plan, faulty);
  ASSERT_NE(kernel, nullptr);
  const HostProblem problem = random_problem(spec, shape, 5);
  const auto output = testing_support::run_kernel(*device_, *kernel, spec, problem);
  ASSERT_TRUE(output.ok()) << render(output.error());
  EXPECT_NE(
      compare(*output, oracle_forward(spec, problem, all_rows(shape), Arithmetic::kVector)).wrong,
      "");
}

}  // namespace
}  // namespace attune
