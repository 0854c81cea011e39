// TMA: bulk tensor copies between global and shared memory (PTX ISA, cp.async.bulk.tensor).
// Tensors have rank 4, (head dim, sequence, head, batch), or with residues, which kernels count as
// parts of a larger batch, rank 5: (head dim, sequence, residue, head, batch). Coordinates are in
// elements.
#pragma once

#include "templates/kernels/head.cuh"
#include "templates/ptx/platform.cuh"

namespace att {

// A CUtensorMap: encoded by the driver, opaque to the kernel.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// L2 eviction priorities, in the encoding that createpolicy.fractional gives for a fraction of 1.
enum class CacheHint : unsigned long long {
  kEvictFirst = 0x12F0000000000000ull,
  kEvictLast = 0x14F0000000000000ull
};

ATT_FN void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (column, row, head, batch) to shared memory at `to`; `barrier` counts the
// bytes.
ATT_FN void tma_load(unsigned to, const TensorMap* map, unsigned barrier, int column, int row,
                     int head, int batch, CacheHint hint) {
  if constexpr (spec::kResidues > 1) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(batch % spec::kResidues), "r"(head),
        "r"(batch / spec::kResidues), "l"(static_cast<unsigned long long>(hint))
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
      "l"(static_cast<unsigned long long>(hint))
      : "memory");
}

// The same, to the same address of every CTA in `cta_mask`; each one's own barrier counts.
ATT_FN void tma_load_multicast(unsigned to, const TensorMap* map, unsigned barrier, int column,
                               int row, int head, int batch, CacheHint hint,
                               unsigned short cta_mask) {
  if constexpr (spec::kResidues > 1) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8, %9;" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(batch % spec::kResidues), "r"(head),
        "r"(batch / spec::kResidues), "h"(cta_mask), "l"(static_cast<unsigned long long>(hint))
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(cta_mask),
      "l"(static_cast<unsigned long long>(hint))
      : "memory");
}

// Copies `bytes`, a multiple of 16, from global memory, 16-byte aligned; `barrier` counts them.
ATT_FN void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Writes shared memory at `from` to the map's box; what lies outside of the tensor is not written.
ATT_FN void tma_store(const TensorMap* map, unsigned from, int column, int row, int head,
                      int batch) {
  if constexpr (spec::kResidues > 1) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
            "l"(map),
        "r"(from), "r"(column), "r"(row), "r"(batch % spec::kResidues), "r"(head),
        "r"(batch / spec::kResidues)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

ATT_FN void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their shared memory, all groups but the latest ones.
template <int kPending = 0>
ATT_FN void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until this thread's stores are complete.
ATT_FN void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace att
