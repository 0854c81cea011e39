// cp.async: copies of 16 bytes, or 4, from global to shared memory that bypass registers. sm_80 and
// later.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN void cp_async_16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// Writes zeros, and reads nothing, when `valid` is false.
ATT_FN void cp_async_16_or_zero(unsigned to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0));
}

// The same of 4 bytes.
ATT_FN void cp_async_4_or_zero(unsigned to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0));
}

ATT_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most kGroups of this thread's committed groups are in flight.
template <int kGroups>
ATT_FN void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Arrives at the mbarrier, without waiting, when all copies that this thread has started are there:
// one of the arrivals that it was initialised for.
ATT_FN void cp_async_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace att
