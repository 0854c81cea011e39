// Named barriers: barriers 1 to 15 of a CTA among a stated number of threads (PTX ISA,
// barrier.cta).
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN void named_barrier_sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts this thread without waiting.
ATT_FN void named_barrier_arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Synchronises, and says whether `predicate` holds for any of the threads.
ATT_FN bool named_barrier_any(int barrier, int threads, bool predicate) {
  unsigned any;
  asm volatile(
      "{\n.reg .pred in, out;\n"
      "setp.ne.b32 in, %3, 0;\n"
      "barrier.cta.red.or.pred out, %1, %2, in;\n"
      "selp.b32 %0, 1, 0, out;\n}"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<unsigned>(predicate))
      : "memory");
  return any != 0;
}

}  // namespace att
