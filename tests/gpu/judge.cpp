#include "tests/gpu/judge.hpp"

#include <algorithm>
#include <bit>

#include "tests/gpu/canary_device.hpp"
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
                               const std::vector<KernelPlan>& plans) {
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
    for (int launch = 0; launch < 2; ++launch) {
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

}  // namespace attune::gpu_test
