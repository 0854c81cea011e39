// Thread block clusters: rank, barrier, and words of another CTA's shared memory.
#pragma once

#include "templates/ptx/platform.cuh"

namespace att {

ATT_FN unsigned cluster_cta_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of every CTA of the cluster arrives and waits.
ATT_FN void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The same in two: what was written before the arrivals may be read behind the wait.
ATT_FN void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
ATT_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Sets bits of a word at the same shared-memory address of CTA `cta_rank`.
ATT_FN void cluster_or(unsigned word, unsigned cta_rank, unsigned bits) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "red.relaxed.cluster.shared::cluster.or.b32 [remote], %2;\n}" ::"r"(word),
      "r"(cta_rank), "r"(bits)
      : "memory");
}

// Stores two and four floats at a shared-memory address of CTA `cta_rank`, and tells its mbarrier
// of the bytes when they are there. Nobody waits for that here.
ATT_FN void cluster_send(unsigned to, unsigned barrier, unsigned cta_rank,
                         const float (&values)[2]) {
  asm volatile(
      "{\n.reg .b32 remote, told;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 told, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [remote], {%3, %4}, "
      "[told];\n}" ::"r"(to),
      "r"(barrier), "r"(cta_rank), "f"(values[0]), "f"(values[1])
      : "memory");
}
ATT_FN void cluster_send(unsigned to, unsigned barrier, unsigned cta_rank,
                         const float (&values)[4]) {
  asm volatile(
      "{\n.reg .b32 remote, told;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 told, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [remote], {%3, %4, %5, %6}, "
      "[told];\n}" ::"r"(to),
      "r"(barrier), "r"(cta_rank), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
      : "memory");
}

}  // namespace att
