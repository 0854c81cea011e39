// Fences between the generic proxy (ordinary stores) and the async proxy (TMA, wgmma).
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// This thread's stores to shared memory before the fence are seen by TMA and wgmma after it.
ATT_FN void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The same of stores to global memory, this thread's and others' that it has waited for.
ATT_FN void fence_global_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace att
