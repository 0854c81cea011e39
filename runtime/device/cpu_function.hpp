// An object with one function, linked into this process, and its launch over the pool.
//
// It exports `void S(const Params*, int item)`, thread-safe and without state.
#pragma once

#include "runtime/device/cpu_pool.hpp"
#include "runtime/device/device.hpp"
#include "runtime/jit/llvm_module/api.h"

namespace attune {

class CpuFunction final : public LoadedFunction {
 public:
  static Result<std::unique_ptr<LoadedFunction>> load(const AttLlvmApi& module, CpuPool& pool,
                                                      const FunctionRecipe& recipe,
                                                      std::span<const std::uint8_t> image);
  ~CpuFunction() override;
  CpuFunction(const CpuFunction&) = delete;
  CpuFunction& operator=(const CpuFunction&) = delete;

  // Runs at once, on the pool and the calling thread.
  Status launch(const void* params, int items, StreamHandle stream) const override;

 private:
  CpuFunction(const AttLlvmApi& module, CpuPool& pool) : module_(module), pool_(pool) {}

  const AttLlvmApi& module_;
  CpuPool& pool_;
  void* handle_ = nullptr;
  void (*run_item_)(const void* params, int item) = nullptr;
};

}  // namespace attune
