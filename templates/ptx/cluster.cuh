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

// Sets bits of a word at the same shared-memory address of CTA `cta_rank`.
ATT_FN void cluster_or(unsigned word, unsigned cta_rank, unsigned bits) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "red.relaxed.cluster.shared::cluster.or.b32 [remote], %2;\n}" ::"r"(word),
      "r"(cta_rank), "r"(bits)
      : "memory");
}

// One and four floats at the same shared-memory address of CTA `cta_rank`.
ATT_FN void cluster_load(float (&to)[1], unsigned from, unsigned cta_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}"
      : "=f"(to[0])
      : "r"(from), "r"(cta_rank)
      : "memory");
}
ATT_FN void cluster_load(float (&to)[4], unsigned from, unsigned cta_rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(from), "r"(cta_rank)
      : "memory");
}

}  // namespace att
