// Addresses in shared memory as the 32-bit numbers that ldmatrix and cp.async take.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN unsigned shared_address(const void* pointer) {
  unsigned long long address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return static_cast<unsigned>(address);
}

// Adds to a number in shared memory, or makes it at least `value`.
ATT_FN void add_shared(int* sum, int value) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(shared_address(sum)), "r"(value) : "memory");
}
ATT_FN void raise_shared(int* most, int value) {
  asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(shared_address(most)), "r"(value) : "memory");
}

// Adds to a number in shared memory, and tells what it was.
ATT_FN int fetch_add_shared(int* sum, int value) {
  int was;
  asm volatile("atom.shared.add.s32 %0, [%1], %2;"
               : "=r"(was)
               : "r"(shared_address(sum)), "r"(value)
               : "memory");
  return was;
}

ATT_FN void store_shared_4(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// 16 bytes from shared to global memory, both 16-byte aligned.
ATT_FN void copy_shared_to_global_16(void* to, unsigned from) {
  unsigned a, b, c, d;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

ATT_FN unsigned load_shared_4(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// The same of a word that others set meanwhile, however often it is asked.
ATT_FN unsigned load_shared_anew(unsigned address) {
  unsigned value;
  asm volatile("ld.relaxed.cta.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

ATT_FN void store_shared_16(unsigned address, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

ATT_FN void store_shared_floats(unsigned address, const float (&values)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3]));
}
ATT_FN void load_shared_floats(unsigned address, float (&values)[4]) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(address));
}
ATT_FN void store_shared_8(unsigned address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

// 8 bytes of shared memory.
ATT_FN void load_shared_8(unsigned address, float& a, float& b) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(address) : "memory");
}

ATT_FN void load_shared_8(unsigned address, unsigned& a, unsigned& b) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}

ATT_FN void load_shared_16(unsigned address, unsigned (&words)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// Sets bits of a word, for good; without a branch where there are none, over which ptxas would lose
// track of what is the same in all lanes.
ATT_FN void set_shared_bits(unsigned address, unsigned bits) {
  asm volatile(
      "{\n.reg .pred any;\nsetp.ne.b32 any, %1, 0;\n@any red.shared.or.b32 [%0], %1;\n}" ::"r"(
          address),
      "r"(bits)
      : "memory");
}

// 16 bytes of global memory that the kernel does not write, 16-byte aligned.
ATT_FN void load_global_16(const void* from, unsigned (&words)[4]) {
  asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from));
}

// Brings the line of an address nearer.
ATT_FN void prefetch_global(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
}

// Brings bytes of global memory to L2: a multiple of 16, 16-byte aligned. sm_90 and newer, nothing
// before.
ATT_FN void bring_to_l2(const void* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// 16 bytes of global memory that other CTAs have written, as they lie in L2; 16-byte aligned.
ATT_FN void load_global_l2_16(const float* from, float (&values)[4]) {
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "l"(from)
               : "memory");
}

// 8 bytes to global memory.
ATT_FN void store_global_8(void* to, unsigned a, unsigned b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}

// 16 bytes to global memory, 16-byte aligned.
ATT_FN void store_global_16(void* to, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace att
