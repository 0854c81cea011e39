#include "runtime/device/cpu_function.hpp"

#include <fmt/format.h>

namespace attune {

Result<std::unique_ptr<LoadedFunction>> CpuFunction::load(const AttLlvmApi& module, CpuPool& pool,
                                                          const FunctionRecipe& recipe,
                                                          std::span<const std::uint8_t> image) {
  std::unique_ptr<CpuFunction> function(new CpuFunction(module, pool));
  const char* const symbol = recipe.symbol.c_str();
  void* address = nullptr;
  AttLlvmBuffer log{nullptr, 0};
  function->handle_ = module.load(image.data(), image.size(), &symbol, &address, 1, &log);
  std::string detail(static_cast<const char*>(log.data), log.size);
  module.release(&log);
  if (function->handle_ == nullptr) {
    return Error{.id = "cpu-load",
                 .message = fmt::format("the object of {} could not be linked", recipe.symbol),
                 .detail = std::move(detail)};
  }
  function->run_item_ = reinterpret_cast<decltype(run_item_)>(address);
  return std::unique_ptr<LoadedFunction>(std::move(function));
}

CpuFunction::~CpuFunction() {
  if (handle_ != nullptr) module_.unload(handle_);
}

Status CpuFunction::launch(const void* params, int items, StreamHandle) const {
  struct {
    decltype(run_item_) run_item;
    const void* params;
  } run{run_item_, params};
  const auto run_one = [](void* context, int item) {
    const auto& of = *static_cast<const decltype(run)*>(context);
    of.run_item(of.params, item);
  };
  pool_.run(items, run_one, &run);
  return ok_status();
}

}  // namespace attune
