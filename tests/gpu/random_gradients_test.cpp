// Gradients of random specs by random plans of every family, on random and hostile numbers.
#include <algorithm>
#include <cmath>

#include "tests/gpu/canary_device.hpp"
#include "tests/gpu/judge.hpp"
#include "tests/gpu/random_specs_fixture.hpp"
#include "tests/verification/hostile_gradients.hpp"
#include "tests/verification/packed_backward_checks.hpp"
#include "tests/verification/scattered.hpp"

namespace attune::gpu_test {
namespace {

using random_specs::Wanted;

class RandomGradients : public RandomSpecs {
 protected:
  // Of a launch whose matrices lie by strides of their own, and that asks for some gradients of
  // tensors alone. wrong(gradients): what is, by the oracle `exact`.
  template <typename Wrong>
  void check_apart(const AttentionSpec& spec, const ProblemShape& shape, std::uint64_t seed,
                   CanaryDevice& device, BackwardProblem& problem, const KernelPlan& plan,
                   const BackwardOracle& exact, const Wrong& wrong) {
    std::mt19937_64 random(seed);
    ASSERT_TRUE(problem.poison().ok());
    auto apart =
        verification::Scattered::make(device, spec, problem.params(), Pass::kBackward, random);
    ASSERT_TRUE(apart.ok()) << render(apart.error());
    SCOPED_TRACE(apart->text());
    KernelWorkspace workspace(device, shape, KernelWorkspace::Fresh::kPoison);
    att::LaunchParams params = apart->params();
    std::vector<std::size_t> unasked;
    for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
      if (params.d_tensors[slot] == nullptr || random() % 3 != 0) continue;
      params.d_tensors[slot] = nullptr;
      unasked.push_back(slot);
    }
    const bool asks_for_sink = random() % 3 != 0;
    if (!asks_for_sink) params.d_sink = nullptr;
    const Status done = workspace.launch(**bank_.get(spec, plan), params, nullptr);
    if (!done.ok()) {
      EXPECT_EQ(done.error().id, kStridesUnsupported) << render(done.error());
      ++refused_["strides"];
      return;
    }
    const Status gathered = apart->gather();
    ASSERT_TRUE(gathered.ok()) << render(gathered.error());
    auto gradients = problem.download();
    ASSERT_TRUE(gradients.ok()) << render(gradients.error());
    const auto is_untouched = [](const std::vector<double>& values) {
      return std::ranges::all_of(values, [](double x) { return std::isnan(x); });
    };
    for (const std::size_t slot : unasked) {
      EXPECT_TRUE(is_untouched(gradients->tensors[slot])) << slot;
      gradients->tensors[slot] = exact.tensors[slot].values;
    }
    if (!asks_for_sink) {
      EXPECT_TRUE(is_untouched(gradients->sink));
      gradients->sink.clear();
    }
    EXPECT_EQ(wrong(*gradients), "");
    EXPECT_EQ(device.damage(), "");
  }

  // As functions of the O and LSE that came in.
  void check_gradients(const AttentionSpec& spec, const ProblemShape& shape,
                       std::mt19937_64& random, const KernelPlan& forward,
                       const std::vector<KernelPlan>& plans) {
    HostProblem problem = random_problem(spec, shape, random());
    const std::string what = random_specs::make_hostile(spec, problem, random);
    if (random() % 4 == 0) repeat_keys(spec, problem, random);
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
      const Watchdog watchdog = watch(to_string(plan), shape);
      Gradients first;
      check_apart(spec, shape, random(), device, **made, plan, oracle,
                  [&](const Gradients& gradients) { return wrong_gradient(gradients, oracle); });
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

  void check_packed_apart(const AttentionSpec& spec, const KernelPlan& forward,
                          const std::vector<KernelPlan>& plans, std::mt19937_64& random) {
    HostProblem problem = packed::random_packed(spec, random, 5, 150);
    packed::spoil_foreign(spec, problem, -1);
    CanaryDevice device(bank_.device());
    const auto made =
        BackwardProblem::make(device, spec, problem, **bank_.get(spec, forward), random());
    ASSERT_TRUE(made.ok()) << render(made.error());
    const auto given = (*made)->forward_output();
    ASSERT_TRUE(given.ok()) << render(given.error());
    const BackwardSample sample = whole_sample(problem);
    const BackwardOracle oracle =
        oracle_backward(spec, problem, *given, (*made)->output_gradients(), sample);
    for (const KernelPlan& plan : plans) {
      SCOPED_TRACE(to_string(plan));
      const Watchdog watchdog = watch(to_string(plan), problem.shape);
      check_apart(spec, problem.shape, random(), device, **made, plan, oracle,
                  [&](const Gradients& gradients) {
                    return wrong_gradient(gradients, oracle, sample, spec, problem);
                  });
    }
    ++problems_;
  }
};

TEST_F(RandomGradients, AreTheDerivative) {
  for_each_spec(Wanted::kBothPasses, [&](const AttentionSpec& spec, std::mt19937_64& random) {
    const ProblemShape shape = is_packed(spec) ? kTypical : random_shape(random, true);
    const auto plans = plans_of(spec, shape, Pass::kBackward, random, 2);
    if (plans.empty()) return;
    const auto forward = plans_of(spec, shape, Pass::kForward, random, 0);
    if (forward.empty()) return;
    if (!is_packed(spec)) {
      for (std::uint64_t run = 0; run < number_of("ATTUNE_RANDOM_RUNS", 2); ++run) {
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
    const Watchdog watchdog = watch(names, kTypical);
    packed::check_random_gradients(
        {bank_.device(), spec, **bank_.get(spec, forward[0]), backward, Arithmetic::kMatrixUnit}, 2,
        random() % 1000000);
    problems_ += 2;
    check_packed_apart(spec, forward[0], plans, random);
  });
}

}  // namespace
}  // namespace attune::gpu_test
