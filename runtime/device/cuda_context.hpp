// What is so for a scope: which context is current, and what a capture in progress forbids.
#pragma once

#include "runtime/device/cuda_api.hpp"

namespace attune {

// The caller's is current again after it.
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

// For a scope: whatever this thread or another one captures, what this one does on streams that are
// not captured ends no capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& api) : api_(api) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  // A driver that refuses leaves the thread as it was, and `mode_` too.
  void exchange() { (void)api_.thread_exchange_stream_capture_mode(&mode_); }

  const CudaApi& api_;
  int mode_ = kStreamCaptureModeRelaxed;
};

}  // namespace attune
