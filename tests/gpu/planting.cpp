#include "tests/gpu/planting.hpp"

#include <vector>

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

testing::AssertionResult is_found(const planted::Fault& fault, const AttentionSpec& spec,
                                  const ProblemShape& shape, const KernelPlan& plan) {
  KernelBank& bank = KernelBank::instance();
  planted::EditingCompiler compiler(bank.compiler(), fault);
  std::vector<Compiler*> compilers = {&compiler};
  LocalExecutor executor(spec, shape, bank.device(), compilers, nullptr, 7, plan.pass);
  const Candidate candidate(plan);
  // A fault that does not compile is not found, and no verdict on what is verified.
  if (const auto built = executor.compile(candidate); !built.ok())
    return testing::AssertionFailure() << fault.name << ": " << render(built.error());
  if (executor.verify(candidate).ok())
    return testing::AssertionFailure() << to_string(plan) << " passes with " << fault.name;
  return testing::AssertionSuccess();
}

}  // namespace attune::gpu_test
