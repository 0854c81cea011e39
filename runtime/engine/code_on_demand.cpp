#include "runtime/engine/code_on_demand.hpp"

#include "runtime/device/cuda_api.hpp"
#include "runtime/jit/deadline_compiler.hpp"

namespace attune {

Result<const LoadedKernel*> CodeOnDemand::get(const AttentionSpec& spec, Workshop& workshop) {
  if (const LoadedKernel* ready = ready_.load(std::memory_order_acquire)) return ready;
  const std::lock_guard lock(mutex_);
  if (kernel_ != nullptr) return kernel_.get();
  if (failure_) return *failure_;
  auto code = workshop.load(spec, plan_, family_);
  if (!code.ok()) {
    const std::string& id = code.error().id;
    if (id != kCudaError && id != kCompileStuck) failure_ = code.error();
    return code.error();
  }
  kernel_ = std::move(code->kernel);
  ready_.store(kernel_.get(), std::memory_order_release);
  return kernel_.get();
}

}  // namespace attune
