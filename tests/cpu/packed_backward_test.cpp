// The backward pass of packed sequences on the CPU family, in both of its forms, and faults that
// are planted in it.
#include <algorithm>

#include "tests/cpu/cpu_test.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune {
namespace {

using planted::EditingCompiler;
using planted::Fault;

constexpr ProblemShape kTypical{.batch = 6, .heads = 4, .kv_heads = 2, .q_len = 800, .kv_len = 800};

AttentionSpec spec_of(const std::string& dtype, const std::string& lines) {
  auto spec = parse_spec(fmt::format("attune: 1\nname: t\ndtype: {}\n{}", dtype, lines), "t.yaml");
  EXPECT_TRUE(spec.ok()) << render(spec.error());
  return spec.ok() ? *std::move(spec) : AttentionSpec{};
}

class CpuPackedBackward : public testing_support::CpuTest {
 protected:
  // The cheapest of each form: dQ in a launch of its own, dQ beside dK and dV.
  std::vector<KernelPlan> plans_of(const AttentionSpec& spec) {
    const auto by_cost = plans_by_cost(spec, kTypical, device_->facts(), Pass::kBackward);
    EXPECT_TRUE(by_cost.ok()) << render(by_cost.error());
    std::vector<KernelPlan> found;
    for (const bool whole_heads : {false, true}) {
      const auto plan = std::ranges::find_if(*by_cost, [&](const KernelPlan& candidate) {
        return std::get<CpuBackwardPlan>(candidate.tile).whole_heads == whole_heads;
      });
      if (plan != by_cost->end()) found.push_back(*plan);
    }
    EXPECT_EQ(found.size(), 2u);
    return found;
  }

  const LoadedKernel* forward_of(const AttentionSpec& spec) {
    const auto plan = default_plan(spec, kTypical, device_->facts());
    EXPECT_TRUE(plan.ok()) << render(plan.error());
    return plan.ok() ? kernel_of(spec, *plan) : nullptr;
  }

  // Calls check(kernels) for both forms together.
  template <typename Check>
  void with_kernels(const AttentionSpec& spec, const Check& check) {
    SCOPED_TRACE(canonical_text(spec));
    const LoadedKernel* const forward = forward_of(spec);
    ASSERT_NE(forward, nullptr);
    std::vector<const LoadedKernel*> backward;
    for (const KernelPlan& plan : plans_of(spec)) {
      backward.push_back(kernel_of(spec, plan));
      ASSERT_NE(backward.back(), nullptr);
    }
    check(packed::BackwardKernels{*device_, spec, *forward, backward, Arithmetic::kVector});
  }

  // To the bit, whatever the order in which threads come.
  void check_repeats(const packed::BackwardKernels& kernels) {
    const HostProblem problem = random_problem(kernels.spec, kTypical, 4);
    const auto made = BackwardProblem::make(*device_, kernels.spec, problem, kernels.forward, 4);
    ASSERT_TRUE(made.ok()) << render(made.error());
    for (const LoadedKernel* backward : kernels.backward) {
      const auto first = (*made)->run(*backward), second = (*made)->run(*backward);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_EQ(first->dq, second->dq);
      EXPECT_EQ(first->dk, second->dk);
      EXPECT_EQ(first->dv, second->dv);
      EXPECT_EQ(first->tensors, second->tensors);
      EXPECT_EQ(first->sink, second->sink);
    }
  }
};

// One of the forward tests' specs, whose mask looks up tokens, and those that learn: by distance
// under a mask, with dropout and a sink, and by token without a mask.
TEST_F(CpuPackedBackward, EveryKindOfSpec) {
  const AttentionSpec specs[] = {spec_of("bf16", packed::kSpecs[5]),
                                 spec_of("fp32", packed::kLearningSpecs[0]),
                                 spec_of("fp16", packed::kLearningSpecs[1])};
  std::uint64_t seed = 100;
  for (const AttentionSpec& spec : specs) {
    with_kernels(spec, [&](const packed::BackwardKernels& kernels) {
      packed::check_random_gradients(kernels, 2, seed += 1000);
      packed::check_lengths_of_gradients(kernels);
      packed::check_garbage_of_gradients(kernels);
      if (&spec == &specs[1]) check_repeats(kernels);
    });
  }
}

TEST_F(CpuPackedBackward, PlantedFaultsAreFound) {
  const AttentionSpec spec = spec_of("fp32", packed::kLearningSpecs[0]);
  const LoadedKernel* const forward = forward_of(spec);
  ASSERT_NE(forward, nullptr);
  const ProblemShape shape{.batch = 4, .heads = 4, .kv_heads = 2, .q_len = 600, .kv_len = 600};
  HostProblem problem = packed::packed_problem(spec, shape,
                                               {.cu_q = {0, 150, 150, 400, 590},
                                                .cu_kv = {0, 150, 150, 400, 590},
                                                .used_kv = {140, 0, 250, 190}},
                                               3);
  packed::spoil_foreign(spec, problem, -1);
  const auto made = BackwardProblem::make(*device_, spec, problem, *forward, 7);
  ASSERT_TRUE(made.ok()) << render(made.error());
  const BackwardOracle oracle =
      oracle_backward(spec, problem, (*made)->output_gradients(), /*rounds_p=*/false);
  const auto wrong = [&](const KernelPlan& plan, Compiler& compiler) -> std::string {
    const auto backward = load(spec, plan, compiler);
    if (backward == nullptr) return "no kernel";
    const auto gradients = (*made)->run(*backward);
    EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    if (!gradients.ok()) return "no gradients";
    return wrong_gradient(*gradients, oracle, whole_sample(problem), spec, problem);
  };
  const auto plan = parse_plan("cpu backward cpu t128 s64 u8 c1 v32");
  ASSERT_TRUE(plan.ok()) << render(plan.error());
  EXPECT_EQ(wrong(*plan, *compiler_), "") << "without a fault";
  for (const Fault& fault : {Fault{"what two tiles learn in one place",
                                   {{"return first / tile + sequence;", "return sequence;"}}},
                             Fault{"a tile goes on behind its sequence",
                                   {{"min_i32(begin + kTile, length)",
                                     "min_i32(begin + kTile, length + (length == 140))"}}}}) {
    EditingCompiler compiler(*compiler_, fault);
    EXPECT_NE(wrong(*plan, compiler), "") << fault.name;
  }
}

}  // namespace
}  // namespace attune
