#include "runtime/engine/code_on_demand.hpp"

#include <exception>
#include <future>

namespace attune {

const LoadedKernel* CodeOnDemand::get(const AttentionSpec& spec, Workshop& workshop) {
  std::call_once(once_, [&] {
    const auto load = [&]() -> std::shared_ptr<LoadedKernel> {
      workshop.device().allow_during_capture();  // of this thread
      auto code = workshop.load(spec, plan_);
      return code.ok() ? std::move(code->kernel) : nullptr;
    };
    try {
      kernel_ = std::async(std::launch::async, load).get();
    } catch (const std::exception&) {  // no thread, no memory
    }
  });
  return kernel_.get();
}

}  // namespace attune
