// What the sm90a family's backward kernels have in common: loads of slabs, rows of dO that may be
// anything, products that subtract, gradients on their way out.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/shared_memory.cuh"
#include "templates/ptx/shuffles.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_cta.cuh"

namespace att {
namespace sm90 {

constexpr int kAllConsumers = 1;  // a named barrier
ATT_FN int warpgroup_barrier(int warpgroup) { return 2 + warpgroup; }
ATT_FN int pair_barrier(int pair) { return 4 + pair; }  // of two warps

// What is known of a query, in shared memory; split numbers take 16 bytes.
constexpr int kRowReferenceBytes = plan::kSplitReferences ? 16 : 4;
constexpr int kRowDeltaBytes = plan::kSplitDeltas ? 16 : 4;

template <int kSlabs>
ATT_FN void load_slabs(unsigned to, int slab_bytes, const TensorMap* map, unsigned barrier, int row,
                       int head, int batch, CacheHint hint) {
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    tma_load(to + slab * slab_bytes, map, barrier, slab * kSlabColumns, row, head, batch, hint);
  }
}

// A lane's word of a row of split_row()'s other factor: -1/2 three times, and zeros.
ATT_FN unsigned halves_word() {
  const int word = thread_index() % 4;
  return word == 0 ? 0xbf00bf00u : word == 1 ? 0xbf00u : 0u;
}
// Eight equal rows of it. A warp's.
ATT_FN void store_halves(unsigned to) {
  store_shared_4(to + thread_index() * 4, halves_word());
  fence_shared_for_async();
}
// One step more of a product: each column less its query's split number at `rows`. Rows are as they
// lie, 16 bytes each, and the second half of the step reads the first one's again.
template <typename Products>
ATT_FN void subtract_rows(Products& product, unsigned halves, unsigned rows) {
  const unsigned left = plan::kKeysInRegisters ? halves_word() : wgmma_descriptor(halves, 0);
  plan::multiply_split(product, left, wgmma_descriptor(rows, 0));
}

ATT_FN bool is_dead_row(unsigned references, int row) {
  const unsigned word = load_shared_4(references + row * kRowReferenceBytes);
  if constexpr (plan::kSplitReferences) {
    return (word & 0xffffu) == (split_row(kDeadReference).words[0] & 0xffffu);
  }
  return word == __builtin_bit_cast(unsigned, infinity());
}
// dO of a row without live keys may be anything: zeroes it, of kRows rows. A warpgroup's; each does
// so for itself, so that none waits for the others. `barrier`: a named one, its own.
template <int kRows>
ATT_FN void clean_dead_rows(unsigned references, unsigned d_o, int barrier) {
  const int thread = thread_index() % kWarpgroupThreads;
  const int lane = thread % 32;
  bool cleaned = false;
#pragma unroll 1
  for (int first = 0; first < kRows; first += 32) {
    unsigned dead = ballot(is_dead_row(references, first + lane));
    while (dead != 0) {
      const int row = first + highest_bit(dead);
      dead ^= 1u << highest_bit(dead);
      cleaned = true;
      if (thread < kVSlabs * 8) {
        store_shared_16(swizzled(d_o + thread / 8 * (kRows * kRowBytes), row, thread % 8), {});
      }
    }
  }
  if (!cleaned) {
    sync_warp();  // lane 0 gives back for all what they have read
    return;
  }
  fence_shared_for_async();
  named_barrier_sync(barrier, kWarpgroupThreads);
}

// Where rows of a key gradient go: those of a matrix in shared memory, whose slabs are `slab_bytes`
// apart, and from there to global memory, where its first row is row k0 of the head.
struct KeyRows {
  unsigned matrix;
  int slab_bytes;
  const TensorMap* map;
  int k0, head, batch;
};
// A warp's 16 rows, from `row` of the matrix on, to the matrix. `thread`: of a warpgroup.
template <int kColumns>
ATT_FN void leave_key_rows(const float (&gradient)[kColumns / 2], float scale, const KeyRows& to,
                           int row, int thread) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
    unsigned packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] = pack_2<spec::kDType>(gradient[8 * step + 2 * i] * scale,
                                       gradient[8 * step + 2 * i + 1] * scale);
    }
    stmatrix_x4(swizzled(to.matrix + step / 4 * to.slab_bytes, row + thread % 16,
                         step % 4 * 2 + thread % 32 / 16),
                packed);
  }
}
// And on to global memory.
template <int kColumns>
ATT_FN void store_key_rows(const float (&gradient)[kColumns / 2], float scale, const KeyRows& to,
                           int row, int thread) {
  leave_key_rows<kColumns>(gradient, scale, to, row, thread);
  fence_shared_for_async();
  sync_warp();
  if (thread % 32 == 0) {
#pragma unroll
    for (int slab = 0; slab < slabs(kColumns); ++slab) {
      tma_store(to.map, to.matrix + slab * to.slab_bytes + row * kRowBytes, slab * kSlabColumns,
                to.k0 + row, to.head, to.batch);
    }
    tma_store_commit();
  }
}

}  // namespace sm90
}  // namespace att
