#include "tests/gpu/judge.hpp"

#include "tests/gpu/canary_device.hpp"
#include "tuner/measure/device_problem.hpp"

namespace attune::gpu_test {
namespace {

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
  const HostOutput oracle = oracle_forward(spec, problem, rows);
  const HostOutput plain = plain_forward(spec, problem, rows);
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
    for (int launch = 0; launch < 2; ++launch) {
      const auto out = run(**on_device, device, **kernel, rows);
      if (!out.ok()) return failure(render(out.error()));
      const std::string wrong = compare(spec.dtype, *out, oracle, plain);
      if (!wrong.empty()) return failure(wrong);
      if (const std::string damage = device.damage(); !damage.empty()) return failure(damage);
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace attune::gpu_test
