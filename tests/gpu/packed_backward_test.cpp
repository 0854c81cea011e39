// The backward pass of packed sequences on the GPU families, and faults that are planted in it.
#include <algorithm>
#include <set>

#include "tests/gpu/gradient_faults.hpp"
#include "tests/gpu/kernel_bank.hpp"
#include "tests/verification/editing_compiler.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune::gpu_test {
namespace {

using planted::EditingCompiler;
using planted::Fault;

constexpr ProblemShape kTypical{.batch = 6, .heads = 4, .kv_heads = 2, .q_len = 800, .kv_len = 800};

AttentionSpec spec_of(const std::string& dtype, const std::string& lines) {
  return gpu_test::spec_of(fmt::format("name: t\ndtype: {}\n{}", dtype, lines));
}

// d 64, 128 and 80, and two that are no multiple of 16; two parts of the columns; masks that walk
// both ways and look tokens up; scores whose slope varies; and what learns: by distance and a sink
// under dropout, and by token.
std::vector<AttentionSpec> specs() {
  return {spec_of("bf16", packed::kSpecs[0]),
          spec_of("bf16", packed::kSpecs[1]),
          spec_of("fp16", packed::kSpecs[3]),
          spec_of("bf16", packed::kSpecs[5]),
          spec_of("fp16", packed::kSpecs[7]),
          spec_of("bf16", packed::kSpecs[10]),
          spec_of("fp32", packed::kSpecs[1]),
          spec_of("bf16", packed::kLearningSpecs[0]),
          spec_of("fp16", packed::kLearningSpecs[1]),
          spec_of("bf16", "head_dim: 72\nlayout: thd\nmask: causal\n"),
          spec_of("fp16", "head_dim: {qk: 40, v: 56}\nlayout: thd\n"),
          spec_of("bf16", std::string("deterministic: true\n") + packed::kSpecs[2])};
}

KernelPlan forward_plan(const AttentionSpec& spec, const DeviceFacts& facts) {
  return plans_of_families(spec, kTypical, facts).front();
}

// Of every family the cheapest, and some others.
std::vector<KernelPlan> backward_plans(const AttentionSpec& spec, const DeviceFacts& facts) {
  const auto by_cost = plans_by_cost(spec, kTypical, facts, Pass::kBackward);
  EXPECT_TRUE(by_cost.ok()) << render(by_cost.error());
  std::vector<KernelPlan> found;
  if (!by_cost.ok()) return found;
  const auto add = [&](const KernelPlan& plan) {
    if (std::ranges::find(found, plan) == found.end()) found.push_back(plan);
  };
  std::set<Family> families;
  for (const KernelPlan& plan : *by_cost) {
    if (families.insert(plan.family()).second) add(plan);
  }
  add((*by_cost)[by_cost->size() / 2]);
  add(by_cost->back());
  return found;
}

class GpuPackedBackward : public testing::Test {
 protected:
  void SetUp() override {
    if (!bank_.missing().empty()) GTEST_SKIP() << bank_.missing();
  }

  // Calls check(kernels) for each spec, with all of its plans together.
  template <typename Check>
  void for_each_spec(const Check& check) {
    const DeviceFacts& facts = bank_.device().facts();
    const std::vector<AttentionSpec> all = specs();
    std::vector<Request> requests;
    for (const AttentionSpec& spec : all) {
      requests.push_back({spec, forward_plan(spec, facts)});
      for (const KernelPlan& plan : backward_plans(spec, facts)) requests.push_back({spec, plan});
    }
    bank_.prepare(requests);
    for (const AttentionSpec& spec : all) {
      SCOPED_TRACE(canonical_text(spec));
      const auto forward = bank_.get(spec, forward_plan(spec, facts));
      ASSERT_TRUE(forward.ok()) << render(forward.error());
      std::vector<std::shared_ptr<LoadedKernel>> owned;
      std::vector<const LoadedKernel*> backward;
      for (const KernelPlan& plan : backward_plans(spec, facts)) {
        const auto kernel = bank_.get(spec, plan);
        ASSERT_TRUE(kernel.ok()) << to_string(plan) << ": " << render(kernel.error());
        owned.push_back(*kernel);
        backward.push_back(owned.back().get());
      }
      check(packed::BackwardKernels{bank_.device(), spec, **forward, backward,
                                    Arithmetic::kMatrixUnit});
      if (HasFatalFailure()) return;
    }
  }

  KernelBank& bank_ = KernelBank::instance();
};

TEST_F(GpuPackedBackward, RandomBatches) {
  std::uint64_t seed = 100;
  for_each_spec([&](const packed::BackwardKernels& kernels) {
    packed::check_random_gradients(kernels, 3, seed += 1000);
  });
}

TEST_F(GpuPackedBackward, LengthsAroundATileAndNone) {
  for_each_spec(
      [](const packed::BackwardKernels& kernels) { packed::check_lengths_of_gradients(kernels); });
}

TEST_F(GpuPackedBackward, OffsetsOfNoCallerStayInside) {
  for_each_spec(
      [](const packed::BackwardKernels& kernels) { packed::check_garbage_of_gradients(kernels); });
}

// To the bit, whatever the order in which CTAs come; what tensors learn is added up by atomics, as
// is the sm90a family's dQ.
TEST_F(GpuPackedBackward, RowsRepeat) {
  for_each_spec([&](const packed::BackwardKernels& kernels) {
    const HostProblem problem = random_problem(kernels.spec, kTypical, 4);
    const auto made =
        BackwardProblem::make(kernels.device, kernels.spec, problem, kernels.forward, 4);
    ASSERT_TRUE(made.ok()) << render(made.error());
    const std::vector<KernelPlan> plans = backward_plans(kernels.spec, kernels.device.facts());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const LoadedKernel* const backward = kernels.backward[i];
      const auto first = (*made)->run(*backward), second = (*made)->run(*backward);
      ASSERT_TRUE(first.ok() && second.ok());
      // NaN where a row is no sequence's, in both.
      const auto same = [](double a, double b) { return a == b || (a != a && b != b); };
      if (plans[i].family() != Family::kSm90a) {
        EXPECT_TRUE(std::ranges::equal(first->dq, second->dq, same));
      }
      EXPECT_TRUE(std::ranges::equal(first->dk, second->dk, same));
      EXPECT_TRUE(std::ranges::equal(first->dv, second->dv, same));
    }
  });
}

TEST_F(GpuPackedBackward, PlantedFaultsAreFound) {
  const AttentionSpec spec = spec_of("bf16", packed::kLearningSpecs[0]);
  const ProblemShape shape{.batch = 4, .heads = 4, .kv_heads = 2, .q_len = 600, .kv_len = 600};
  HostProblem problem = packed::packed_problem(spec, shape,
                                               {.cu_q = {0, 150, 150, 400, 590},
                                                .cu_kv = {0, 150, 150, 400, 590},
                                                .used_kv = {140, 0, 250, 190}},
                                               3);
  packed::spoil_foreign(spec, problem, -1);
  const auto forward = bank_.get(spec, forward_plan(spec, bank_.device().facts()));
  ASSERT_TRUE(forward.ok()) << render(forward.error());
  const auto made = BackwardProblem::make(bank_.device(), spec, problem, **forward, 7);
  ASSERT_TRUE(made.ok()) << render(made.error());
  const BackwardOracle oracle = oracle_backward(spec, problem, (*made)->output_gradients());
  const auto wrong = [&](const KernelPlan& plan, Compiler& compiler) -> std::string {
    const auto built = build(spec, plan, compiler, nullptr);
    EXPECT_TRUE(built.ok()) << render(built.error());
    if (!built.ok()) return "";
    const auto backward = bank_.device().load(spec, plan, built->code.image);
    EXPECT_TRUE(backward.ok()) << render(backward.error());
    if (!backward.ok()) return "";
    const auto gradients = (*made)->run(**backward);
    EXPECT_TRUE(gradients.ok()) << render(gradients.error());
    if (!gradients.ok()) return "";
    return wrong_gradient(*gradients, oracle, whole_sample(problem), spec, problem);
  };
  std::set<Family> families;
  for (const KernelPlan& plan : backward_plans(spec, bank_.device().facts())) {
    if (!families.insert(plan.family()).second) continue;
    SCOPED_TRACE(to_string(plan));
    EXPECT_EQ(wrong(plan, bank_.compiler()), "") << "without a fault";
    for (const Fault& fault : planted::packed_gradient_faults(plan.family())) {
      EditingCompiler compiler(bank_.compiler(), fault);
      EXPECT_NE(wrong(plan, compiler), "") << fault.name;
    }
  }
}

}  // namespace
}  // namespace attune::gpu_test
