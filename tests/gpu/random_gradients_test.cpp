// Gradients of random specs by random plans of every family, on random and hostile numbers.
#include "tests/gpu/canary_device.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/random_specs_fixture.hpp"
#include "tests/verification/hostile_gradients.hpp"
#include "tests/verification/packed_backward_checks.hpp"

namespace attune::gpu_test {
namespace {

using random_specs::Wanted;

class RandomGradients : public RandomSpecs {
 protected:
  // As functions of the O and LSE that came in.
  void check_gradients(const AttentionSpec& spec, const ProblemShape& shape,
                       std::mt19937_64& random, const KernelPlan& forward,
                       const std::vector<KernelPlan>& plans) {
    HostProblem problem = random_problem(spec, shape, random());
    const std::string what = random_specs::make_hostile(spec, problem, random);
    SCOPED_TRACE(fmt::format("{}, {}", what, to_string(shape)));
    CanaryDevice device(bank_.device());
    const auto made =
        BackwardProblem::make(device, spec, problem, **bank_.get(spec, forward), random());
    ASSERT_TRUE(made.ok()) << render(made.error());
    const auto given = (*made)->forward_output();
    ASSERT_TRUE(given.ok()) << render(given.error());
    const BackwardOracle oracle =
        oracle_backward(spec, problem, *given, (*made)->output_gradients(), whole_sample(problem));
    if (!hostile::holds(spec.dtype, oracle)) return;
    ++problems_;
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(to_string(plan));
      Gradients first;
      for (int launch = 0; launch < kLaunches; ++launch) {
        auto gradients = (*made)->run(**bank_.get(spec, plan));
        ASSERT_TRUE(gradients.ok()) << render(gradients.error());
        const std::string wrong = wrong_gradient(*gradients, oracle);
        EXPECT_EQ(wrong, "");
        if (!wrong.empty()) break;
        if (launch > 0 && spec.deterministic) {
          EXPECT_TRUE(is_same(*gradients, first)) << "another launch, other bits";
        }
        if (launch == 0) first = *std::move(gradients);
        EXPECT_EQ(device.damage(), "");
      }
    }
  }
};

TEST_F(RandomGradients, AreTheDerivative) {
  for_each_spec(Wanted::kBothPasses, [&](const AttentionSpec& spec, std::mt19937_64& random) {
    const ProblemShape shape = is_packed(spec) ? kTypical : random_shape(random, true);
    const auto forward = plans_of(spec, shape, Pass::kForward, random, 0);
    const auto plans = plans_of(spec, shape, Pass::kBackward, random, 2);
    if (forward.empty() || plans.empty()) return;
    if (!is_packed(spec)) {
      for (int run = 0; run < 2; ++run) {
        std::vector<KernelPlan> whole = plans;
        if (run > 0) {
          if (forward[0].residues > 1) break;  // of other lengths
          std::erase_if(whole, [](const auto& plan) { return plan.residues > 1; });
        }
        if (whole.empty()) continue;
        check_gradients(spec, run == 0 ? shape : random_shape(random, true), random, forward[0],
                        whole);
      }
      return;
    }
    std::vector<std::shared_ptr<LoadedKernel>> owned;
    std::vector<const LoadedKernel*> backward;
    std::string names;
    for (const KernelPlan& plan : plans) {
      owned.push_back(*bank_.get(spec, plan));
      backward.push_back(owned.back().get());
      names += to_string(plan) + "; ";
    }
    SCOPED_TRACE(names);
    packed::check_random_gradients(
        {bank_.device(), spec, **bank_.get(spec, forward[0]), backward, Arithmetic::kMatrixUnit}, 2,
        random() % 1000000);
    problems_ += 2;
  });
}

}  // namespace
}  // namespace attune::gpu_test
