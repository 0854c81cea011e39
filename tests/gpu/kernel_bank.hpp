// The GPU, and every kernel that the chosen tests need, compiled in parallel before the first runs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/jit/compiler.hpp"

namespace attune::gpu_test {

struct Request {
  AttentionSpec spec;
  KernelPlan plan;
};

class KernelBank {
 public:
  // The process' own. Its device is cuda:0 or absent.
  static KernelBank& instance();

  // Why there is nothing to run on; empty: there is.
  const std::string& missing() const { return missing_; }
  Device& device() { return *device_; }
  Compiler& compiler() { return *compiler_; }

  // Compiles on all cores what is not there yet.
  void prepare(const std::vector<Request>& requests);
  // The kernel of spec and plan, or why it could not be had.
  Result<std::shared_ptr<LoadedKernel>> get(const AttentionSpec& spec, const KernelPlan& plan);
  // LLVM's code of some plans, at the limit of their registers, makes ptxas serialise products: the
  // compile fails, and the plan is not judged. NVRTC must build every plan.
  bool gives_up(const AttentionSpec& spec, const KernelPlan& plan);

 private:
  KernelBank();

  std::string missing_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Compiler> compiler_;
  std::map<std::string, Result<std::shared_ptr<LoadedKernel>>> kernels_;
};

// Whether a forward plan's loops have references that do not follow the scores.
bool is_frozen(const KernelPlan& plan);

// Whether this process runs the test of the parameter named so, of the suite ("Specs/Backward"):
// kernels of others need not be compiled.
bool will_run(std::string_view suite, const std::string& parameter);

// The cost model's choice of every family that serves the spec on the device.
std::vector<KernelPlan> cheapest_of_families(const AttentionSpec& spec, const ProblemShape& shape,
                                             const DeviceFacts& facts);
// The same, but a plan that the bank gives up gives way to the next cheapest, as in the runtime.
std::vector<KernelPlan> plans_of_families(const AttentionSpec& spec, const ProblemShape& shape,
                                          const DeviceFacts& facts);

// What plans are chosen for where a test has many shapes: they hardly depend on it, and so all
// kernels can be compiled before the first runs, once for all tests of a spec.
inline constexpr ProblemShape kPlanShape{1, 4, 1, 300, 300};

// Of both passes: the forward plan whose O and LSE come in, and of every family that serves the
// backward pass the cost model's choice; none where no family does.
struct BackwardPlans {
  KernelPlan forward;
  std::vector<KernelPlan> backward;
};
BackwardPlans cheapest_of_both_passes(const AttentionSpec& spec, const ProblemShape& shape,
                                      const DeviceFacts& facts);
std::vector<Request> requests_of(const AttentionSpec& spec, const BackwardPlans& plans);

// The text must be valid.
AttentionSpec spec_of(const std::string& yaml);

}  // namespace attune::gpu_test
