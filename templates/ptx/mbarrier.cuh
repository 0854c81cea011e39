// mbarrier: the shared-memory barriers that TMA copies and warps complete (PTX ISA, section
// mbarrier). A barrier is named by its shared-memory byte address. Its phase parity starts at 0: a
// wait for parity 1 on a fresh barrier returns at once.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA and to the other CTAs of the cluster.
ATT_FN void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

ATT_FN void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the same barrier of another CTA of the cluster.
// kRelease: what the thread wrote to the shared memory of other CTAs is to be seen by who waits;
// that takes a memory barrier of the whole GPU (twice a tile, it cost a third of the speed).
template <bool kRelease>
ATT_FN void mbarrier_arrive_remote(unsigned barrier, unsigned cta_rank) {
  if constexpr (kRelease) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(cta_rank)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(cta_rank)
        : "memory");
  }
}

// Arrives, and makes the phase wait for `bytes` more of TMA data.
ATT_FN void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Returns when the phase of the given parity is complete.
template <bool kClusterScope = false>
ATT_FN void mbarrier_wait(unsigned barrier, unsigned parity) {
  if constexpr (kClusterScope) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "wait:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\nbra wait;\nready:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred done;\n"
        "wait:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\nbra wait;\nready:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  }
}

// Whether it is.
ATT_FN bool mbarrier_is_complete(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace att
