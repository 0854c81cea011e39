#include "tests/gpu/judge.hpp"

#include <algorithm>
#include <bit>

#include "runtime/reference/backward.hpp"
#include "tests/gpu/canary_device.hpp"
#include "tuner/measure/backward_problem.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

// Also of NaNs.
bool same_bits(const HostOutput& a, const HostOutput& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  return std::ranges::equal(a.o, b.o, same) && std::ranges::equal(a.lse, b.lse, same);
}

Result<HostOutput> run(DeviceProblem& problem, Device& device, const LoadedKernel& kernel,
                       const std::vector<Row>& rows) {
  ATT_CHECK(problem.poison());
  ATT_CHECK(problem.prepare(kernel));
  ATT_CHECK(problem.launch(kernel, nullptr));
  ATT_CHECK(device.synchronize());
  return problem.download(rows);
}

}  // namespace

testing::AssertionResult judge(const AttentionSpec& spec, const HostProblem& problem,
                               const std::vector<KernelPlan>& plans, int launches) {
  KernelBank& bank = KernelBank::instance();
  if (plans.empty()) return testing::AssertionFailure() << "no plan serves the spec";
  const std::vector<Row> rows = sample_rows(problem.shape, kMaxRows, 1);
  const ForwardOracle oracle = oracle_forward(spec, problem, rows);
  CanaryDevice device(bank.device());
  auto on_device = DeviceProblem::upload(device, spec, problem);
  if (!on_device.ok()) return testing::AssertionFailure() << render(on_device.error());
  for (const KernelPlan& plan : plans) {
    const auto failure = [&](const std::string& what) {
      return testing::AssertionFailure()
             << to_string(plan) << ", " << to_string(problem.shape) << ": " << what;
    };
    auto kernel = bank.get(spec, plan);
    if (!kernel.ok()) return failure(render(kernel.error()));
    HostOutput first;
    for (int launch = 0; launch < launches; ++launch) {
      auto out = run(**on_device, device, **kernel, rows);
      if (!out.ok()) return failure(render(out.error()));
      const std::string wrong = compare(*out, oracle).wrong;
      if (!wrong.empty()) return failure(wrong);
      if (launch > 0 && !same_bits(*out, first)) return failure("another launch, other bits");
      first = *std::move(out);
      if (const std::string damage = device.damage(); !damage.empty()) return failure(damage);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult judge_backward(const AttentionSpec& spec, const ProblemShape& shape,
                                        std::uint64_t seed, const KernelPlan& forward,
                                        const std::vector<KernelPlan>& plans, int launches) {
  KernelBank& bank = KernelBank::instance();
  if (plans.empty()) return testing::AssertionFailure() << "no plan serves the spec";
  const HostProblem problem = random_problem(spec, shape, seed);
  const auto forward_kernel = bank.get(spec, forward);
  if (!forward_kernel.ok()) return testing::AssertionFailure() << render(forward_kernel.error());
  CanaryDevice device(bank.device());
  const auto on_device = BackwardProblem::make(device, spec, problem, **forward_kernel, seed);
  if (!on_device.ok()) return testing::AssertionFailure() << render(on_device.error());
  const BackwardOracle oracle = oracle_backward(spec, problem, (*on_device)->output_gradients());
  for (const KernelPlan& plan : plans) {
    const auto failure = [&](int launch, const std::string& what) {
      return testing::AssertionFailure() << to_string(plan) << ", " << to_string(shape)
                                         << ", launch " << launch << ": " << what;
    };
    const auto kernel = bank.get(spec, plan);
    if (!kernel.ok()) return failure(0, render(kernel.error()));
    Gradients first;
    for (int launch = 0; launch < launches; ++launch) {
      auto gradients = (*on_device)->run(**kernel);
      if (!gradients.ok()) return failure(launch, render(gradients.error()));
      const std::string wrong = wrong_gradient(*gradients, oracle);
      if (!wrong.empty()) return failure(launch, wrong);
      if (spec.deterministic && launch > 0 && !is_same(*gradients, first))
        return failure(launch, "other bits than the first");
      if (launch == 0) first = *std::move(gradients);
      if (const std::string damage = device.damage(); !damage.empty())
        return failure(launch, damage);
    }
  }
  return testing::AssertionSuccess();
}

bool is_same(const Gradients& a, const Gradients& b) {
  return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv && a.tensors == b.tensors && a.sink == b.sink;
}

}  // namespace attune::gpu_test
