#include "tests/gpu/planting.hpp"

#include <deque>
#include <vector>

#include "runtime/support/parallel.hpp"
#include "tuner/measure/local_executor.hpp"

namespace attune::gpu_test {

Result<std::unique_ptr<LoadedKernel>> kernel_with(const planted::Fault& fault,
                                                  const AttentionSpec& spec,
                                                  const KernelPlan& plan) {
  KernelBank& bank = KernelBank::instance();
  planted::EditingCompiler compiler(bank.compiler(), fault);
  ATT_TRY(const BuiltKernel built, build(spec, plan, compiler, nullptr));
  return bank.device().load(spec, plan, built.code.image);
}

testing::AssertionResult are_found(const std::vector<planted::Fault>& faults,
                                   const AttentionSpec& spec, const ProblemShape& shape,
                                   const KernelPlan& plan) {
  KernelBank& bank = KernelBank::instance();
  std::deque<planted::EditingCompiler> editing;
  // What a kernel is judged by comes from the first: the oracle, and a backward pass' O and LSE.
  std::vector<Compiler*> compilers = {&bank.compiler()};
  for (const planted::Fault& fault : faults)
    compilers.push_back(&editing.emplace_back(bank.compiler(), fault));
  LocalExecutor executor(spec, shape, bank.device(), compilers, nullptr, 7, plan.pass);
  const auto candidate = [&](std::size_t i) { return Candidate(plan, static_cast<int>(i) + 1); };
  std::vector<Status> built(faults.size(), ok_status());
  parallel_for(static_cast<std::int64_t>(faults.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    if (const auto facts = executor.compile(candidate(at)); !facts.ok()) built[at] = facts.error();
  });
  testing::AssertionResult result = testing::AssertionSuccess();
  const auto fail = [&](std::size_t i, const std::string& what) {
    if (result) result = testing::AssertionFailure() << to_string(plan);
    result << "\n" << faults[i].name << ": " << what;
  };
  for (std::size_t i = 0; i < faults.size(); ++i) {
    // What does not compile, or cannot be judged, is not found.
    const Status status = built[i].ok() ? executor.verify(candidate(i)) : built[i];
    executor.release(candidate(i));
    if (status.ok()) {
      fail(i, "passes");
      continue;
    }
    const std::string reason = rejection_reason(status.error());
    if (reason != "miscompute" && reason != "doubtful") fail(i, render(status.error()));
  }
  return result;
}

testing::AssertionResult is_found(const planted::Fault& fault, const AttentionSpec& spec,
                                  const ProblemShape& shape, const KernelPlan& plan) {
  return are_found({fault}, spec, shape, plan);
}

}  // namespace attune::gpu_test
