// The warpgroups of the sm90a family's backward kernel of wide heads that make gradients: dV of P
// and dO, or dK of dS and Q, both transposed and kept in registers, and parts of dQ, of dS and K,
// which are added up in global memory.
#pragma once

#include "templates/ptx/convert.cuh"
#include "templates/ptx/fence.cuh"
#include "templates/ptx/mbarrier.cuh"
#include "templates/ptx/named_barrier.cuh"
#include "templates/ptx/reduce.cuh"
#include "templates/ptx/stmatrix.cuh"
#include "templates/ptx/tma.cuh"
#include "templates/ptx/wgmma.cuh"
#include "templates/tile/backward_rows.cuh"
#include "templates/tile/sm90_wide_layout.cuh"

namespace att {
namespace sm90 {

// Where a part of dQ of a tile is summed: [tiles, parts, blocks of 8 columns, threads, 4], the
// order of the accumulators. `head`: of all.
ATT_FN long long sums_offset(const BackwardParams& p, int head, int tile, int part) {
  const int tiles = padded_rows(p.q_len) / kTileQ;
  return ((static_cast<long long>(head) * tiles + tile) * kDqParts + part) * (kTileQ * kDqColumns);
}

template <bool kOfKeys>
struct GradientConsumer {
  static constexpr int kSlabsOfGradient = kOfKeys ? kQkSlabs : kVSlabs;
  static constexpr int kFirst = kOfKeys ? kDqParts - 1 : 0;
  using Slab = float[kTileKv / 2];  // 64 columns of the gradient, as rows, x kTileKv keys

  const BackwardParams& p;
  const WideMemory& shared;
  const int thread;  // of the warpgroup
  const int b, k0;

  ATT_MEMBER void warp_arrive(unsigned barrier) const {
    if (thread % 32 == 0) mbarrier_arrive(barrier);
  }

  ATT_MEMBER void issue_dq(float (&d_q)[kDqNumbers], int part, unsigned n) const {
    const unsigned ds = wgmma_descriptor(shared.d_s(0), kQSlabBytes) + (n & 1) * (kScoreBytes / 16);
    const unsigned k = wgmma_descriptor(shared.k(), kKvSlabBytes) + part * (kKvSlabBytes / 16);
    wgmma_fence();
    plan::multiply_dq<kRowBytes, 4 * kRowBytes, 2, kQSlabBytes / 16>(d_q, ds, k);
    wgmma_commit();
  }
  ATT_MEMBER void add_dq(const float (&d_q)[kDqNumbers], float* sums) const {
#pragma unroll
    for (int j = 0; j < kDqNumbers / 4; ++j) {
      reduce_add_4(sums + j * 512, d_q[4 * j], d_q[4 * j + 1], d_q[4 * j + 2], d_q[4 * j + 3]);
    }
  }

  ATT_MEMBER void make(Slab (&gradient)[kSlabsOfGradient]) const {
    // Products name what they write as read, too: ptxas would keep what is undefined.
    float d_q[kDqNumbers] = {};
#pragma unroll
    for (Slab& slab : gradient) {
#pragma unroll
      for (float& number : slab) number = 0.0f;
    }
    Ring<kStages> at;
    unsigned n = 0;
    const auto full = [&](int stage) {
      return kOfKeys ? shared.q_full(stage) : shared.do_full(stage);
    };
    mbarrier_wait(full(0), 0);
    if (spec::kHasMask && load_tile_info(info(0)).tile < 0) return;
    bool more = true;
    while (more) {
      at = uniform(at);
      mbarrier_wait(full(at.stage), at.parity);
      const TileInfo now = load_tile_info(info(at.stage));
      float* const sums =
          p.d_q_sums + sums_offset(p, b * p.heads + now.h, now.tile, 0) + thread * 4;
      mbarrier_wait(shared.ds_full(n), turn_parity(n));
      issue_dq(d_q, kFirst, n);
      if constexpr (!kOfKeys) mbarrier_wait(shared.p_full(n), turn_parity(n));
      // [columns, queries] of the rows, transposed, times [queries, keys].
      const unsigned rows = wgmma_descriptor(kOfKeys ? shared.q(0) : shared.d_o(0), kQSlabBytes) +
                            at.stage * (kSlabsOfGradient * kQSlabBytes / 16);
      const unsigned scores = wgmma_descriptor(kOfKeys ? shared.d_s(0) : shared.p(0), kQSlabBytes) +
                              (n & 1) * (kScoreBytes / 16);
      wgmma_fence();
#pragma unroll
      for (int slab = 0; slab < kSlabsOfGradient; ++slab) {
        plan::multiply_gradient<kRowBytes, 4 * kRowBytes, kRowBytes, 4 * kRowBytes>(
            gradient[slab], rows + slab * (kQSlabBytes / 16), scores);
      }
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(d_q);
      add_dq(d_q, sums + kFirst * (kTileQ * kDqColumns));
      wgmma_wait<0>();
      if constexpr (kOfKeys) {
        warp_arrive(shared.q_empty(at.stage));
      } else {
        warp_arrive(shared.p_empty(n));
        warp_arrive(shared.do_empty(at.stage));
      }
      // The part in the middle is made by turns.
      const bool makes_second = (n & 1) == (kOfKeys ? 1u : 0u);
      if (makes_second) {
        issue_dq(d_q, 1, n);
        wgmma_wait<0>();
        wgmma_pin(d_q);
      }
      warp_arrive(shared.ds_empty(n));
      if (makes_second) add_dq(d_q, sums + kTileQ * kDqColumns);
      at.advance();
      ++n;
      // Never taken; as in sm90_backward_consumer.cuh.
      if (p.kv_len < 0) return;
      more = now.more != 0;
    }
#pragma unroll
    for (Slab& slab : gradient) wgmma_pin(slab);
  }

  // To where K's or V's rows were, transposed back, and from there to global memory.
  ATT_MEMBER void store(const Slab (&gradient)[kSlabsOfGradient], float scale, unsigned matrix,
                        const TensorMap* map, int h_kv) const {
    const int lane = thread % 32;
#pragma unroll
    for (int slab = 0; slab < kSlabsOfGradient; ++slab) {
#pragma unroll
      for (int step = 0; step < kTileKv / 16; ++step) {
        unsigned packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          packed[i] = pack_2<spec::kDType>(gradient[slab][8 * step + 2 * i] * scale,
                                           gradient[slab][8 * step + 2 * i + 1] * scale);
        }
        stmatrix_x4_trans(
            swizzled(matrix + slab * kKvSlabBytes, step * 16 + lane / 16 * 8 + lane % 8,
                     thread / 32 * 2 + lane / 8 % 2),
            packed);
      }
    }
    fence_shared_for_async();
    named_barrier_sync(warpgroup_barrier(kOfKeys ? 1 : 2), kWarpgroupThreads);
    if (thread != 0) return;
#pragma unroll
    for (int slab = 0; slab < kSlabsOfGradient; ++slab) {
#pragma unroll
      for (int row = 0; row < kTileKv; row += 16) {
        tma_store(map, matrix + slab * kKvSlabBytes + row * kRowBytes, slab * kSlabColumns,
                  k0 + row, h_kv, b);
      }
    }
    tma_store_commit();
    tma_store_wait();
  }

 private:
  ATT_MEMBER unsigned info(int stage) const {
    return kOfKeys ? shared.q_tile(stage) : shared.do_tile(stage);
  }
};

}  // namespace sm90
}  // namespace att
