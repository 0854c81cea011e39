#include "runtime/engine/code_on_demand.hpp"

namespace attune {

Result<const LoadedKernel*> CodeOnDemand::get(const AttentionSpec& spec, Workshop& workshop) {
  // Of an exception the next call knows nothing, and tries again.
  std::call_once(once_, [&] {
    auto code = workshop.load(spec, plan_, family_);
    status_ = code.ok() ? ok_status() : Status(code.error());
    if (code.ok()) kernel_ = std::move(code->kernel);
  });
  if (!status_.ok()) return status_.error();
  return kernel_.get();
}

}  // namespace attune
