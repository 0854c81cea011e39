// Makes a context current for a scope, and the caller's again after it.
#pragma once

#include "runtime/device/cuda_api.hpp"

namespace attune {

class ScopedContext {
 public:
  ScopedContext(const CudaApi& api, CUcontext context)
      : api_(api),
        status_(cuda_status(api, api.context_push_current(context), "cuCtxPushCurrent")) {}
  ~ScopedContext() {
    CUcontext popped = nullptr;
    if (status_.ok()) api_.context_pop_current(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaApi& api_;
  Status status_;
};

}  // namespace attune
