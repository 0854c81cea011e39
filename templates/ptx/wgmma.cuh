// wgmma: a warpgroup's asynchronous matrix products D[64, n] += A[64, 16] B[16, n] with fp32 D in
// registers and 16-bit A and B (PTX ISA, wgmma.mma_async). Four whole warps execute each call. The
// products themselves, of the widths that a kernel needs, stand in its head: multiply_qk() and
// multiply_pv() (generator/plan/wgmma.hpp).
//
// D: lane i of warp w holds rows 16w + i/4 and that + 8; of each block j of 8 columns it holds
// d[4j], d[4j+1] (the first row, columns 8j + 2(i%4) and + 1) and d[4j+2], d[4j+3] (the second
// row). A in registers has mma.m16n8k16's layout. A and B in shared memory are named by
// descriptors.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

// Rows of 128 bytes under the 128-byte swizzle, as TMA writes them: 16-byte chunk c of row r lies
// at chunk c ^ (r % 8). Groups of 8 rows are 1024 bytes apart. `slab_bytes` is the distance between
// blocks of 64 columns; only operands that are transposed (columns contiguous along n) read it.
// The group of rows at `address` is 1024-byte aligned. (In a cluster, addresses bear the CTA's rank
// above bit 23.) Returns the descriptor's low word, to which multiples of 16 bytes are added as
// bytes / 16; the high word is the same for all.
ATT_FN constexpr unsigned wgmma_descriptor(unsigned address, unsigned slab_bytes) {
  return (slab_bytes >> 4 << 16) | ((address & 0x3FFFF) >> 4);
}

// Orders earlier register writes before the products that follow.
ATT_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATT_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending of the latest groups are still running.
template <int kPending>
ATT_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what computes or uses these registers on its side of the call: the compiler moves
// arithmetic over fences and waits, which name no registers, and ptxas then serialises the products
// (C7514).
template <int kCount>
ATT_FN void wgmma_pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    float* const r = registers + i;
    asm volatile(""
                 : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3]), "+f"(r[4]), "+f"(r[5]),
                   "+f"(r[6]), "+f"(r[7])::"memory");
  }
}
template <int kCount>
ATT_FN void wgmma_pin(unsigned (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    unsigned* const r = registers[i];
    asm volatile("" : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])::"memory");
  }
}

}  // namespace att
