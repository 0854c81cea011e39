// CTAs that hand results to one another.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Adds to a counter in global memory and returns what it was. What the CTA wrote before a barrier
// and this call is seen by whoever arrives later, and by the threads that a barrier lets on then.
ATT_FN int arrive(int* counter, int count = 1) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(count)
               : "memory");
  return before;
}

// What whoever arrived before wrote is seen by this thread from now on, and by those that a barrier
// lets on then.
ATT_FN int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// What a counter was a moment ago. Nothing else follows from it.
ATT_FN int load_relaxed(const int* counter) {
  int value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Adds 1 to a counter in global memory and returns what it was. Nothing else follows from it.
ATT_FN int take_one_of(int* counter) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// The same of `count`. (Of a constant 1, ptxas has other registers in the kernels that take items.)
ATT_FN int take_of(int* counter, int count) {
  int before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(count)
               : "memory");
  return before;
}

// Makes a counter at least `value`. What threads wrote that this one has waited for is seen by
// whoever sees that.
ATT_FN void raise(int* counter, int value) {
  asm volatile("red.release.gpu.global.max.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// ---- Counters that nobody zeroes. What lies there before a launch is anything, but for what is
// left of the launch before, whose last one to arrive leaves the mark alone. All who will arrive
// look for it first, and put it there where it is not; so whoever arrives finds it, and a count
// below it.
using MarkedCounter = unsigned long long;

constexpr MarkedCounter kCounterMark = 0xB7E151628AED0000ull, kCountBits = 0xFFFF;

// One thread calls it, some time before it arrives.
ATT_FN void mark_counter(MarkedCounter* counter) {
  MarkedCounter found;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(counter) : "memory");
  if ((found & ~kCountBits) == kCounterMark) return;
  // If it is another one by now, somebody else has marked it.
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %0, %2;"
               : "+l"(found)
               : "l"(counter), "l"(kCounterMark)
               : "memory");
}

// As arrive(), of `all` that do: whether this is the last one.
ATT_FN bool arrive_last(MarkedCounter* counter, int all) {
  MarkedCounter before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(counter), "l"(1ull)
               : "memory");
  if (static_cast<int>(before & kCountBits) != all - 1) return false;
  *counter = kCounterMark;
  return true;
}

ATT_FN void wait_a_while() { asm volatile("nanosleep.u32 64;"); }

}  // namespace att
